// Refunds restore the quota of a client, and never more.
#include <rapidcheck.h>

#include <algorithm>

#include "client.h"
#include "property.h"

namespace rate_limit {
namespace {

void give_back(const Policy& policy, const StateLayout& layout, Micros now, std::uint64_t cost,
               std::uint64_t* state) {
    Check check;
    check.evaluate(policy, layout, state, now, cost);
    check.give_back(state);
}

bool same_numbers(const Decision& a, const Decision& b) {
    return a.allowed == b.allowed && a.rate == b.rate && a.remaining == b.remaining &&
           a.reset_after == b.reset_after && a.retry_after == b.retry_after && a.delay == b.delay &&
           a.excess_milli == b.excess_milli;
}

// After a random trace one more request is admitted and given back at the same moment.
void a_client_has_what_it_had(const Trace& trace) {
    const bool roomy = *rc::gen::arbitrary<bool>();
    const StateLayout layout = roomy ? layout_of(trace.policy, kMaxRates, 1000) : layout_of(trace.policy);
    std::vector<std::uint64_t> state(words_of(layout));
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        Check check;
        check.evaluate(trace.policy, layout, state.data(), now, 0);
        const Decision before = check.decision();
        check.evaluate(trace.policy, layout, state.data(), now, step.cost);
        if (!check.decision().allowed) {
            check.refuse(state.data());
            continue;
        }
        check.charge(state.data());
        if (*random::between(0, 1) == 0) {
            give_back(trace.policy, layout, now, step.cost, state.data());
            RC_ASSERT(same_numbers(check.evaluate(trace.policy, layout, state.data(), now, 0), before));
        }
    }
}

void test_a_client_has_what_it_had_before(void**) {
    for_every_algorithm("a request that is given back was not made", kPlain, a_client_has_what_it_had);
    for_every_algorithm("the same with several rates", kSeveralRates, a_client_has_what_it_had);
    for_every_algorithm("the same when the clock steps", kStepsBack | kSeveralRates,
                        a_client_has_what_it_had);
}

// Some time may pass before it is given back, and more may be given back than there is.
void nothing_more_is_given(const Trace& trace) {
    Client client(trace.policy);
    std::vector<std::uint64_t> state;
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        client.request(now, step.cost);
        const std::uint64_t limit = client.look(now).limit;
        state = client.state();
        give_back(client.policy(), client.layout(), now, *random::any_cost(limit), state.data());
        Check check;
        const Decision& after = check.evaluate(client.policy(), client.layout(), state.data(), now, 0);
        RC_ASSERT(after.remaining >= client.look(now).remaining);
        RC_ASSERT(after.remaining <= after.limit);
        RC_ASSERT(after.reset_after <= client.look(now).reset_after);
        // All of it leaves a client that has used nothing.
        give_back(client.policy(), client.layout(), now, 2 * kMaxCount, state.data());
        RC_ASSERT(check.evaluate(client.policy(), client.layout(), state.data(), now, 0).remaining ==
                  after.limit);
    }
}

void test_no_more_is_given_back_than_there_is(void**) {
    for_every_algorithm("no more is given back than there is", kStepsBack, nothing_more_is_given);
}

// A later refund gives back the newest requests that still count.
void test_what_is_left_of_a_request_is_given_back_later(void**) {
    const struct {
        Algorithm algorithm;
        std::uint64_t remaining;
    } rows[] = {
        {Algorithm::kTokenBucket, 9},     // 5 used, 1 drained, 3 given back
        {Algorithm::kFixedWindow, 8},     // 5 used, 3 given back
        {Algorithm::kSlidingWindow, 8},   // the same
        {Algorithm::kSlidingBuckets, 8},  // the same, of an earlier sub-window
        {Algorithm::kSlidingLog, 8},
    };
    for (const auto& row : rows) {
        Client client(policy_of(row.algorithm, "10r/m"));
        assert_true(client.request(kMidnight, 5).allowed);
        std::vector<std::uint64_t> state = client.state();
        const Micros now = kMidnight + 6 * kSecond;
        give_back(client.policy(), client.layout(), now, 3, state.data());
        Check check;
        const std::uint64_t remaining =
            check.evaluate(client.policy(), client.layout(), state.data(), now, 0).remaining;
        if (remaining != row.remaining) {
            fail_msg("%s: %llu remaining", algorithm_name(row.algorithm),
                     static_cast<unsigned long long>(remaining));
        }
    }
}

// A refund of more than the count of this window continues in the window before.
void test_a_sliding_window_gives_back_of_the_window_before(void**) {
    Client client(policy_of(Algorithm::kSlidingWindow, "10r/m"));
    client.request(kMidnight, 8);
    const Micros now = kMidnight + kMinute;
    client.request(now, 1);
    std::vector<std::uint64_t> state = client.state();
    give_back(client.policy(), client.layout(), now, 4, state.data());
    Check check;
    assert_int_equal(check.evaluate(client.policy(), client.layout(), state.data(), now, 0).remaining, 5);
}

// A window that starts with the first request is open no more when that is given back.
void test_a_first_request_that_is_given_back_starts_no_window(void**) {
    Policy policy = policy_of(Algorithm::kFixedWindow, "10r/m");
    policy.align_first = true;
    Client client(policy);
    client.request(kMidnight, 2);
    std::vector<std::uint64_t> state = client.state();
    give_back(policy, client.layout(), kMidnight + kSecond, 2, state.data());
    Check check;
    const Micros later = kMidnight + 30 * kSecond;
    assert_int_equal(check.evaluate(policy, client.layout(), state.data(), later, 1).reset_after, kMinute);
}

void test_the_time_of_the_last_request_is_forgotten(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Policy policy = policy_of(algorithm, "10r/m");
        policy.min_interval = kSecond;
        Client client(policy);
        client.request(kMidnight);
        std::vector<std::uint64_t> state = client.state();
        give_back(policy, client.layout(), kMidnight, 1, state.data());
        Check check;
        assert_true(check.evaluate(policy, client.layout(), state.data(), kMidnight, 1).allowed);
    }
}

void test_a_look_and_an_unlimited_client_have_nothing_to_give(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(policy_of(algorithm, "5r/m"));
        client.request(kMidnight, 2);
        std::vector<std::uint64_t> state = client.state();
        give_back(client.policy(), client.layout(), kMidnight + kSecond, 0, state.data());
        assert_true(state == client.state());
        Policy off = client.policy();
        off.rates = rates_of("off");
        give_back(off, client.layout(), kMidnight + kSecond, 1, state.data());
        assert_true(state == client.state());
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_client_has_what_it_had_before),
        cmocka_unit_test(test_no_more_is_given_back_than_there_is),
        cmocka_unit_test(test_what_is_left_of_a_request_is_given_back_later),
        cmocka_unit_test(test_a_sliding_window_gives_back_of_the_window_before),
        cmocka_unit_test(test_a_first_request_that_is_given_back_starts_no_window),
        cmocka_unit_test(test_the_time_of_the_last_request_is_forgotten),
        cmocka_unit_test(test_a_look_and_an_unlimited_client_have_nothing_to_give),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
