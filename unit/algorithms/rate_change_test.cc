// A new rate takes effect at once, whatever state an old rate left.
#include <rapidcheck.h>

#include <algorithm>

#include "algorithms/algorithm.h"
#include "client.h"
#include "property.h"

namespace rate_limit {
namespace {

// With room for just its rates, or for any.
Client draw_client(const Policy& policy) {
    const bool roomy = *rc::gen::arbitrary<bool>();
    return Client(policy, roomy ? layout_of(policy, kMaxRates, 1000) : layout_of(policy));
}

// Runs all steps but leaves the client with the rates and at the time of the last.
Micros run(const Trace& trace, Client* client) {
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        if (step.rates.size != 0) {
            client->set_rates(step.rates);
        }
        client->request(now, step.cost);
    }
    return now;
}

// What was used before the change of a rate is still used after it.
void used_stays_used(const Trace& trace, Client client) {
    const Micros now = run(trace, &client);
    const std::uint32_t left = std::min(client.look(now).remaining, kMaxCost);
    RC_PRE(left > 0);
    const std::uint64_t used = *random::between<std::uint64_t>(1, left);
    RC_ASSERT(client.request(now, used).allowed);
    const RateList rates = random::draw_rates(trace.policy.algorithm, false);
    RC_LOG() << "used " << used << " at " << now << ", then rate=" << rates << "\n";
    client.set_rates(rates);
    const Decision decision = client.look(now);
    RC_ASSERT(decision.limit == capacity_of(client.policy(), rates.rates[0]));
    RC_ASSERT(decision.remaining <= decision.limit - std::min(decision.limit, used));
}

void what_was_used_stays_used(const Trace& trace) { used_stays_used(trace, draw_client(trace.policy)); }

// With room to spare a period that comes back finds its own state, so only a client without is told of all
// others.
void what_was_used_stays_used_in_one_slot(const Trace& trace) {
    used_stays_used(trace, Client(trace.policy));
}

void test_what_was_used_stays_used_under_any_new_rate(void**) {
    for_every_algorithm("what was used stays used", kPlain, what_was_used_stays_used);
    for_every_algorithm("what was used stays used after many changes", kRateChanges,
                        what_was_used_stays_used_in_one_slot);
}

// A plan that depends on the request, and not only on the client, must not renew the quota of another.
void test_a_period_that_comes_back_finds_what_was_used_under_it(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(policy_of(algorithm, "5r/h"), layout_of(policy_of(algorithm, "5r/h"), 2, 100));
        assert_int_equal(client.admitted(kMidnight, 10), 5);
        client.set_rates(rates_of("5r/s"));
        assert_false(client.request(kMidnight).allowed);
        assert_true(client.request(kMidnight + 10 * kSecond).allowed);
        client.set_rates(rates_of("5r/h"));
        assert_false(client.request(kMidnight + 10 * kSecond).allowed);
    }
}

// A new count for the same period changes the limit and nothing else.
void a_new_count_leaves_what_is_used(const Trace& trace) {
    Client client = draw_client(trace.policy);
    const Micros now = run(trace, &client);
    const Decision before = client.look(now);
    RateList rates = trace.policy.rates;
    rates.rates[0].count = *random::any_count(trace.policy.algorithm);
    // Two counters may hold twice a lowered limit: each is then cut to the limit.
    RC_PRE(trace.policy.algorithm != Algorithm::kSlidingWindow ||
           rates.rates[0].count >= trace.policy.rates.rates[0].count);
    RC_LOG() << "at " << now << " rate=" << rates << "\n";
    client.set_rates(rates);
    const Decision after = client.look(now);
    const std::uint64_t used = before.limit - before.remaining;
    RC_ASSERT(after.remaining == after.limit - std::min(after.limit, used));
}

void test_a_new_count_leaves_what_is_used_as_it_is(void**) {
    bool kept = true;
    for (const Algorithm algorithm : kEveryAlgorithm) {
        // A level drains at the old rate until its next charge: buckets are tested below.
        if (!is_bucket(algorithm)) {
            kept &= rc::check(std::string(algorithm_name(algorithm)) + ": a new count leaves what is used",
                              [=] { a_new_count_leaves_what_is_used(*any_trace(algorithm, kPlain)); });
        }
    }
    assert_true(kept);
}

void nobody_waits_longer_than_for_the_new_quota(const Trace& trace) {
    Client client = draw_client(trace.policy);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        if (step.rates.size != 0) {
            client.set_rates(step.rates);
        }
        const Decision decision = client.request(now, step.cost);
        Micros longest = 0;
        for (std::uint32_t i = 0; i < client.policy().rates.size; ++i) {
            longest = std::max(longest, longest_wait(client.policy(), client.policy().rates.rates[i]));
        }
        RC_ASSERT(decision.retry_after <= longest);
        RC_ASSERT(decision.reset_after <= longest);
    }
}

void test_nobody_waits_longer_than_one_that_has_just_used_up_the_new_quota(void**) {
    for_every_algorithm("nobody waits longer", kRateChanges, nobody_waits_longer_than_for_the_new_quota);
    for_every_algorithm("nobody waits longer with several rates", kRateChanges | kSeveralRates,
                        nobody_waits_longer_than_for_the_new_quota);
}

// Whether one of the trace's periods bears the mark of another one, so that a change between them is taken
// for a clock that was set back: one in 4093 does.
bool is_mistaken(const Trace& trace, const Rate& rate) {
    const auto alike = [&](const RateList& rates) {
        return std::any_of(rates.rates, rates.rates + rates.size, [&](const Rate& other) {
            return other.period != rate.period && period_mark(other) == period_mark(rate);
        });
    };
    return alike(trace.policy.rates) || std::any_of(trace.steps.begin(), trace.steps.end(),
                                                    [&](const Step& step) { return alike(step.rates); });
}

// The same against a client that does use up the new quota at that moment. Sub-windows may have another
// phase.
void nobody_waits_longer_than_a_fresh_client(const Trace& trace) {
    Client client = draw_client(trace.policy);
    const Micros now = run(trace, &client);
    const RateList rates = random::draw_rates(trace.policy.algorithm, false);
    RC_PRE(!is_mistaken(trace, rates.rates[0]));
    client.set_rates(rates);
    Client fresh(client.policy());
    const std::uint64_t limit = fresh.look(now).limit;
    RC_ASSERT(fresh.request(now, limit).allowed);
    const std::uint64_t cost = *random::between<std::uint64_t>(1, std::min(limit, kMaxCost));
    RC_LOG() << "cost " << cost << " at " << now << " rate=" << client.policy().rates << "\n";
    RC_ASSERT(client.peek(now, cost).retry_after <= fresh.peek(now, cost).retry_after);
}

void test_nobody_waits_longer_than_a_fresh_client_of_the_new_rate(void**) {
    bool kept = true;
    for (const Algorithm algorithm : kEveryAlgorithm) {
        if (algorithm != Algorithm::kSlidingBuckets) {
            kept &= rc::check(
                std::string(algorithm_name(algorithm)) + ": nobody waits longer than a fresh client",
                [=] { nobody_waits_longer_than_a_fresh_client(*any_trace(algorithm, kRateChanges)); });
        }
    }
    assert_true(kept);
}

// The old window starts the slack or less before the time at which a new one, shorter, would have to.
void test_a_shorter_period_is_not_mistaken_for_a_clock_a_little_behind(void**) {
    for (const Algorithm algorithm : {Algorithm::kFixedWindow, Algorithm::kSlidingWindow}) {
        for (const Micros early : {Micros{1}, Micros{50'000}, kClockSlack, kClockSlack + 1}) {
            const Micros now = kMidnight + kHour - kMinute - early;
            Client client(policy_of(algorithm, "1r/h"));
            assert_true(client.request(now).allowed);
            client.set_rates(rates_of("1r/m"));
            Client fresh(client.policy());
            assert_true(fresh.request(now).allowed);
            assert_int_equal(client.peek(now).retry_after, fresh.peek(now).retry_after);
        }
    }
    Policy first = policy_of(Algorithm::kFixedWindow, "1r/h");
    first.align_first = true;
    Client client(first);
    assert_true(client.request(kMidnight).allowed);
    client.set_rates(rates_of("1r/m"));
    assert_true(client.peek(kMidnight + kHour - kMinute - 50'000).retry_after <= kMinute);
}

// Old and new windows of all lengths and phases: the wait that is told after the change is exact.
void test_the_wait_under_a_new_period_is_exact_at_every_phase(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const char* before : {"2r/m", "2r/7s", "2r/s"}) {
            for (const char* after : {"2r/31s", "1r/m", "1r/s", "2r/100s", "3r/h"}) {
                for (Micros passed = 0; passed < 130 * kSecond; passed += kSecond / 2) {
                    Client client(policy_of(algorithm, before));
                    client.request(kMidnight + 1'700'000, 2);
                    client.set_rates(rates_of(after));
                    const Micros now = kMidnight + 1'700'000 + passed;
                    const Decision decision = client.request(now);
                    if (!decision.allowed) {
                        assert_true(client.peek(now + decision.retry_after).allowed);
                        assert_false(client.peek(now + decision.retry_after - 1).allowed);
                    }
                }
            }
        }
    }
}

void test_a_raised_rate_admits_at_once(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Policy policy = policy_of(algorithm, "5r/h");
        policy.burst = 0;
        Client client(policy);
        while (client.request(kMidnight).allowed) {
        }
        client.set_rates(rates_of("1000r/h"));
        const bool level = algorithm == Algorithm::kLeakyBucket || algorithm == Algorithm::kGcra;
        const Micros now = kMidnight + (level ? kHour / 1000 : 0);
        assert_true(client.request(now).allowed);
    }
}

void test_a_lowered_rate_rejects_at_once_who_has_used_it_up(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Policy policy = policy_of(algorithm, "100r/m");
        Client client(policy);
        assert_int_equal(client.admitted(kMidnight, 20), 20);
        client.set_rates(rates_of("10r/m"));
        client.policy().burst = policy.burst != 0 ? 9 : 0;
        const Decision decision = client.look(kMidnight);
        assert_int_equal(decision.limit, 10);
        assert_int_equal(decision.remaining, 0);
        assert_false(client.peek(kMidnight).allowed);
        assert_true(client.peek(kMidnight).retry_after <= 2 * kMinute);
    }
}

void test_a_level_drains_at_the_new_rate(void**) {
    for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra}) {
        Policy policy = policy_of(algorithm, "10r/h");
        policy.capacity = algorithm == Algorithm::kTokenBucket ? 10 : 0;
        Client client(policy);
        assert_int_equal(client.admitted(kMidnight, 11), 10);
        client.set_rates(rates_of("2r/s"));
        assert_int_equal(client.peek(kMidnight).retry_after, kSecond / 2);
        client.set_rates(rates_of("1r/7s"));
        assert_int_equal(client.peek(kMidnight).retry_after, 7 * kSecond);
        assert_int_equal(client.look(kMidnight).reset_after, 70 * kSecond);
    }
}

void test_a_longer_period_counts_what_a_shorter_one_did(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(policy_of(algorithm, "10r/s"));
        assert_int_equal(client.admitted(kMidnight, 4), 4);
        client.set_rates(rates_of("10r/d"));
        assert_int_equal(client.look(kMidnight).remaining, 6);
        assert_int_equal(client.admitted(kMidnight + 1, 10), 6);
        client.set_rates(rates_of("10r/s"));
        assert_int_equal(client.look(kMidnight + 1).remaining, 0);
    }
}

// However the list changes, a rate whose period is still in the list keeps its state, and a rate with a new
// period starts from the state of a removed one.
void test_rates_find_their_own_state_in_any_order(void**) {
    for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kFixedWindow,
                                      Algorithm::kSlidingWindow, Algorithm::kSlidingBuckets}) {
        Client client(policy_of(algorithm, "10r/s,20r/h,30r/d"),
                      layout_of(policy_of(algorithm, "off"), kMaxRates, 0));
        client.request(kMidnight, 4);
        client.set_rates(rates_of("20r/h"));
        client.request(kMidnight, 3);
        const struct {
            const char* rates;
            std::uint64_t remaining;
            std::uint8_t binding;
        } rows[] = {{"20r/h", 13, 0},
                    {"10r/s", 6, 0},
                    {"30r/d,20r/h", 13, 1},
                    {"20r/h,10r/s", 6, 1},
                    {"20r/h,30r/d", 13, 0},
                    {"99r/d", 95, 0},
                    {"99r/d,99r/h", 92, 1},
                    {"99r/w,10r/s", 6, 1},
                    {"100r/d,100r/s,100r/h", 93, 2},
                    {"100r/h,5r/5m", 1, 1},
                    {"12r/h,12r/s,12r/d", 5, 0}};
        for (const auto& row : rows) {
            Client other = client;
            other.set_rates(rates_of(row.rates));
            const Decision decision = other.look(kMidnight);
            if (decision.remaining != row.remaining || decision.rate != row.binding) {
                fail_msg("%s %s: %lu remaining by rate %u", algorithm_name(algorithm), row.rates,
                         decision.remaining, decision.rate);
            }
        }
    }
}

// Rates of one period, and of periods that a mark cannot tell apart, each keep to one state.
void test_rates_of_one_period_do_not_swap_their_states(void**) {
    for (const char* rates : {"4r/d,9r/d", "9r/d,4r/d", "4r/d,9r/86651s", "9r/86651s,4r/d"}) {
        Client client(policy_of(Algorithm::kTokenBucket, "9r/m,4r/d"));
        client.request(kMidnight);
        client.set_rates(rates_of("4r/d"));
        client.request(kMidnight);
        client.set_rates(rates_of(rates));
        const Decision decision = client.request(kMidnight);
        assert_true(decision.allowed);
        assert_int_equal(client.look(kMidnight).rate, decision.rate);
        assert_int_equal(client.look(kMidnight).remaining, decision.remaining);
    }
}

// The same if the state is converted to a layout with room for the new rates only.
void test_rates_find_their_own_state_in_another_shape(void**) {
    for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kFixedWindow,
                                      Algorithm::kSlidingWindow, Algorithm::kSlidingBuckets}) {
        Client client(policy_of(algorithm, "10r/s,20r/h"));
        client.request(kMidnight, 4);
        client.set_rates(rates_of("20r/h"));
        client.request(kMidnight, 3);
        client.reshape(layout_of(client.policy()));
        assert_int_equal(client.look(kMidnight).remaining, 13);
        client.set_rates(rates_of("50r/d,20r/h"));
        assert_int_equal(client.look(kMidnight).remaining, 13);
        assert_int_equal(client.look(kMidnight).rate, 1);
        // The day was never charged and has no state: it starts from the state of the hour.
        client.set_rates(rates_of("50r/d"));
        assert_int_equal(client.look(kMidnight).remaining, 43);
    }
}

void test_off_is_unlimited_and_keeps_what_was_used(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const bool count_all : {false, true}) {
            Policy policy = policy_of(algorithm, "5r/d");
            policy.count_all = count_all;
            Client client(policy);
            assert_int_equal(client.admitted(kMidnight, 5), 5);
            std::vector<std::uint64_t> state = client.state();
            const std::vector<std::uint64_t> other(state.size());
            Policy off = policy;
            off.rates = rates_of("off");
            // One check serves many clients: nothing of the one before may reach the next.
            Check check;
            check.evaluate(policy, client.layout(), other.data(), kMidnight - kHour, 3);
            assert_true(check.evaluate(off, client.layout(), state.data(), kMidnight + 1, kMaxCost).allowed);
            assert_int_equal(check.decision().delay, 0);
            check.charge(state.data());
            check.refuse(state.data());
            assert_true(state == client.state());
        }
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_used_stays_used_under_any_new_rate),
        cmocka_unit_test(test_a_period_that_comes_back_finds_what_was_used_under_it),
        cmocka_unit_test(test_a_new_count_leaves_what_is_used_as_it_is),
        cmocka_unit_test(test_nobody_waits_longer_than_one_that_has_just_used_up_the_new_quota),
        cmocka_unit_test(test_nobody_waits_longer_than_a_fresh_client_of_the_new_rate),
        cmocka_unit_test(test_a_shorter_period_is_not_mistaken_for_a_clock_a_little_behind),
        cmocka_unit_test(test_the_wait_under_a_new_period_is_exact_at_every_phase),
        cmocka_unit_test(test_a_raised_rate_admits_at_once),
        cmocka_unit_test(test_a_lowered_rate_rejects_at_once_who_has_used_it_up),
        cmocka_unit_test(test_a_level_drains_at_the_new_rate),
        cmocka_unit_test(test_a_longer_period_counts_what_a_shorter_one_did),
        cmocka_unit_test(test_rates_find_their_own_state_in_any_order),
        cmocka_unit_test(test_rates_of_one_period_do_not_swap_their_states),
        cmocka_unit_test(test_rates_find_their_own_state_in_another_shape),
        cmocka_unit_test(test_off_is_unlimited_and_keeps_what_was_used),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
