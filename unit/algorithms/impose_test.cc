// Requests that were admitted elsewhere count here, even beyond the limit.
#include <rapidcheck.h>

#include <algorithm>

#include "client.h"
#include "property.h"

namespace rate_limit {
namespace {

using State = std::vector<std::uint64_t>;

Policy with_debt(Algorithm algorithm, std::string_view rates) {
    Policy policy = policy_of(algorithm, rates);
    policy.debt = true;
    return policy;
}

Decision decide(const Policy& policy, const StateLayout& layout, const State& state, Micros now,
                std::uint64_t cost) {
    Check check;
    return check.evaluate(policy, layout, state.data(), now, cost);
}

void impose(const Policy& policy, const StateLayout& layout, Micros now, std::uint64_t cost, State* state) {
    Check check;
    check.evaluate(policy, layout, state->data(), now, cost);
    check.impose(state->data());
}

bool same_numbers(const Decision& a, const Decision& b) {
    return a.allowed == b.allowed && a.rate == b.rate && a.remaining == b.remaining &&
           a.reset_after == b.reset_after && a.retry_after == b.retry_after && a.delay == b.delay &&
           a.excess_milli == b.excess_milli;
}

void what_fits_is_a_charge(const Trace& drawn) {
    Trace trace = drawn;
    trace.policy.debt = *rc::gen::arbitrary<bool>();
    const bool roomy = *rc::gen::arbitrary<bool>();
    const StateLayout layout = roomy ? layout_of(trace.policy, kMaxRates, 1000) : layout_of(trace.policy);
    State state(words_of(layout));
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        State imposed = state;
        Check check;
        if (!check.evaluate(trace.policy, layout, state.data(), now, step.cost).allowed) {
            // From here on something may be owed.
            check.impose(state.data());
            continue;
        }
        check.charge(state.data());
        check.impose(imposed.data());
        RC_ASSERT(imposed == state);
    }
}

void test_what_fits_is_charged_like_any_request(void**) {
    for_every_algorithm("what fits is a charge", kPlain, what_fits_is_a_charge);
    for_every_algorithm("the same with all else", kSeveralRates | kStepsBack | kIntervals | kCountAll,
                        what_fits_is_a_charge);
}

// In how many parts it comes makes no difference: instances send sums.
void parts_are_their_sum(const Trace& drawn) {
    Policy policy = drawn.policy;
    policy.debt = *rc::gen::arbitrary<bool>();
    const StateLayout layout = layout_of(policy);
    State parts(words_of(layout));
    State sums(words_of(layout));
    Micros now = drawn.start;
    for (const Step& step : drawn.steps) {
        now = moved(now, step.move);
        const std::uint64_t part = *random::between<std::uint64_t>(0, step.cost);
        impose(policy, layout, now, part, &parts);
        impose(policy, layout, now, step.cost - part, &parts);
        impose(policy, layout, now, step.cost, &sums);
        for (const std::uint64_t cost : {0U, 1U}) {
            RC_ASSERT(same_numbers(decide(policy, layout, parts, now, cost),
                                   decide(policy, layout, sums, now, cost)));
        }
    }
}

void test_parts_are_charged_as_their_sum(void**) {
    for_every_algorithm("parts are charged as their sum", kSeveralRates | kStepsBack, parts_are_their_sum);
}

// Ten a minute, all of which are used; then five more are charged, and then far more than may be owed: how
// long until a request fits again.
void test_what_is_owed_is_paid_back_before_anything_fits(void**) {
    const struct {
        Algorithm algorithm;
        Micros none;  // nothing is owed, but all is used
        Micros five;
        Micros most;
    } rows[] = {
        {Algorithm::kTokenBucket, 6 * kSecond, 36 * kSecond, 66 * kSecond},
        {Algorithm::kLeakyBucket, 6 * kSecond, 36 * kSecond, 66 * kSecond},
        {Algorithm::kGcra, 6 * kSecond, 36 * kSecond, 66 * kSecond},
        {Algorithm::kFixedWindow, 60 * kSecond, 60 * kSecond, 60 * kSecond},
        {Algorithm::kSlidingWindow, 66 * kSecond, 84 * kSecond, 93 * kSecond},
        {Algorithm::kSlidingBuckets, 60 * kSecond, 60 * kSecond, 60 * kSecond},
        {Algorithm::kSlidingLog, 60 * kSecond, 60 * kSecond, 60 * kSecond},
    };
    for (const auto& row : rows) {
        const Policy policy = with_debt(row.algorithm, "10r/m");
        const StateLayout layout = layout_of(policy);
        State state(words_of(layout));
        Micros expected = row.none;
        for (const std::uint64_t cost : {10U, 5U, 1'000'000U, 1'000'000U}) {
            impose(policy, layout, kMidnight, cost, &state);
            expected = cost == 10 ? row.none : cost == 5 ? row.five : row.most;
            const Decision refused = decide(policy, layout, state, kMidnight, 1);
            if (refused.allowed || refused.retry_after != expected) {
                fail_msg("%s: after %lu retry in %lld", algorithm_name(row.algorithm), cost,
                         static_cast<long long>(refused.retry_after));
            }
            assert_int_equal(decide(policy, layout, state, kMidnight, 0).remaining, 0);
        }
        assert_true(decide(policy, layout, state, kMidnight + expected, 1).allowed);
        assert_false(decide(policy, layout, state, kMidnight + expected - 1, 1).allowed);
    }
}

// A policy that keeps no debt believes in no more than its limit.
void test_without_debt_no_more_than_the_limit_is_used(void**) {
    for (const Algorithm algorithm :
         {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra, Algorithm::kSlidingWindow}) {
        for (const bool debt : {false, true}) {
            const Policy policy = policy_of(algorithm, "10r/m");
            Policy charging = policy;
            charging.debt = debt;
            const StateLayout layout = layout_of(policy);
            State full(words_of(layout));
            State over(words_of(layout));
            impose(policy, layout, kMidnight, 10, &full);
            impose(charging, layout, kMidnight, 15, &over);
            for (const Micros later : {Micros{0}, 6 * kSecond, 61 * kSecond}) {
                assert_true(same_numbers(decide(policy, layout, over, kMidnight + later, 1),
                                         decide(policy, layout, full, kMidnight + later, 1)));
            }
        }
    }
}

// Each rate owes one quota of its own at most.
void test_every_rate_has_its_own_debt(void**) {
    const Policy policy = with_debt(Algorithm::kTokenBucket, "10r/m,100r/h");
    const StateLayout layout = layout_of(policy);
    State state(words_of(layout));
    impose(policy, layout, kMidnight, 150, &state);
    Decision refused = decide(policy, layout, state, kMidnight, 1);
    assert_int_equal(refused.rate, 1);
    assert_int_equal(refused.retry_after, 51 * kHour / 100);
    impose(policy, layout, kMidnight, 1'000'000, &state);
    refused = decide(policy, layout, state, kMidnight, 1);
    assert_int_equal(refused.retry_after, 101 * kHour / 100);
    // The minute's debt was twenty, and is paid long before.
    Policy minute = policy;
    minute.rates = rates_of("10r/m");
    assert_int_equal(decide(minute, layout, state, kMidnight, 1).retry_after, 66 * kSecond);
}

// Where another policy of the zone admits more at once, a level may be above this one's limit without any
// debt.
void test_a_level_above_what_is_owed_is_not_lowered(void**) {
    Policy wide = policy_of(Algorithm::kGcra, "1r/s");
    wide.burst = 99;
    wide.ceiling = 100;
    Policy narrow = wide;
    narrow.burst = 4;
    narrow.debt = true;
    const StateLayout layout = layout_of(wide);
    State state(words_of(layout));
    impose(wide, layout, kMidnight, 50, &state);
    impose(narrow, layout, kMidnight, 3, &state);
    assert_int_equal(decide(wide, layout, state, kMidnight, 0).remaining, 50);
}

// Imposed requests are whole requests, whatever part of a request was left before.
void test_a_level_owes_no_part_more_than_its_quota(void**) {
    Policy policy = with_debt(Algorithm::kGcra, "1r/s");
    policy.burst = 4;
    policy.ceiling = 100;
    Policy wide = policy;
    wide.burst = 99;
    const StateLayout layout = layout_of(policy);
    State state(words_of(layout));
    impose(policy, layout, kMidnight, 3, &state);
    const Micros now = kMidnight + kSecond / 2;
    impose(policy, layout, now, 50, &state);
    assert_int_equal(decide(wide, layout, state, now, 0).remaining, 90);
}

void test_the_time_of_the_last_request_is_remembered(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Policy policy = with_debt(algorithm, "10r/m");
        policy.min_interval = 5 * kSecond;
        const StateLayout layout = layout_of(policy);
        State state(words_of(layout));
        impose(policy, layout, kMidnight, 1, &state);
        // Too early for a request of this instance, but another has admitted it.
        const Micros now = kMidnight + kSecond;
        impose(policy, layout, now, 1, &state);
        assert_int_equal(decide(policy, layout, state, now, 1).retry_after, 5 * kSecond);
        Policy plain = policy;
        plain.min_interval = 0;
        assert_true(decide(plain, layout, state, now, 8).allowed);
        assert_false(decide(plain, layout, state, now, 9).allowed);
    }
}

void test_a_look_charges_nothing(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = with_debt(algorithm, "10r/m");
        const StateLayout layout = layout_of(policy);
        State state(words_of(layout));
        impose(policy, layout, kMidnight, 12, &state);
        const State before = state;
        impose(policy, layout, kMidnight + kSecond, 0, &state);
        assert_true(state == before);
    }
}

// A log keeps the newest.
void test_of_a_full_log_the_oldest_give_way(void**) {
    const Policy policy = with_debt(Algorithm::kSlidingLog, "10r/m");
    const StateLayout layout = layout_of(policy);
    State state(words_of(layout));
    impose(policy, layout, kMidnight, 10, &state);
    impose(policy, layout, kMidnight + 20 * kSecond, 4, &state);
    const Micros now = kMidnight + 60 * kSecond;
    assert_int_equal(decide(policy, layout, state, now, 0).remaining, 6);
    assert_int_equal(decide(policy, layout, state, now, 7).retry_after, 20 * kSecond);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_what_fits_is_charged_like_any_request),
        cmocka_unit_test(test_parts_are_charged_as_their_sum),
        cmocka_unit_test(test_what_is_owed_is_paid_back_before_anything_fits),
        cmocka_unit_test(test_without_debt_no_more_than_the_limit_is_used),
        cmocka_unit_test(test_every_rate_has_its_own_debt),
        cmocka_unit_test(test_a_level_above_what_is_owed_is_not_lowered),
        cmocka_unit_test(test_a_level_owes_no_part_more_than_its_quota),
        cmocka_unit_test(test_the_time_of_the_last_request_is_remembered),
        cmocka_unit_test(test_a_look_charges_nothing),
        cmocka_unit_test(test_of_a_full_log_the_oldest_give_way),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
