// A clock that steps back neither opens a limit nor closes it.
#include <rapidcheck.h>

#include <algorithm>

#include "client.h"
#include "property.h"

namespace rate_limit {
namespace {

// Steps back do not let time pass: on a clock that counts forward movement alone every bound still holds.
void never_opens(const Trace& trace) {
    Client client(trace.policy);
    std::vector<Admission> all;
    Micros now = trace.start;
    Micros passed = 0;
    for (const Step& step : trace.steps) {
        const Micros next = moved(now, step.move);
        passed += std::max<Micros>(0, next - now);
        now = next;
        if (client.request(now, step.cost).allowed) {
            all.push_back({passed, step.cost});
        }
    }
    RC_ASSERT(within_bound(trace.policy, all));
}

void test_steps_back_never_open_a_limit(void**) {
    for_every_algorithm("steps back never open", kStepsBack, never_opens);
    for_every_algorithm("steps back never open with count=all", kStepsBack | kCountAll, never_opens);
}

// After the clock was set back, no more requests remain than before.
void a_step_back_gives_nothing(const Trace& trace) {
    Client client(trace.policy);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        const Micros next = moved(now, step.move);
        if (next < now) {
            RC_ASSERT(client.look(next).remaining <= client.look(now).remaining);
        }
        now = next;
        client.request(now, step.cost);
    }
}

void test_a_step_back_gives_nothing_back(void**) {
    for_every_algorithm("a step back gives nothing", kStepsBack, a_step_back_gives_nothing);
}

// However far the clock was set back, no wait is longer than that for a whole quota plus the slack.
void never_closes(const Trace& trace) {
    Client client(trace.policy);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        const Decision decision = client.request(now, step.cost);
        Micros longest = trace.policy.min_interval;
        for (std::uint32_t i = 0; i < trace.policy.rates.size; ++i) {
            longest = std::max(longest, longest_wait(trace.policy, trace.policy.rates.rates[i]));
        }
        RC_ASSERT(decision.retry_after <= longest + kClockSlack);
        RC_ASSERT(decision.reset_after <= longest + kClockSlack);
    }
}

void test_steps_back_never_close_a_limit(void**) {
    for_every_algorithm("steps back never close", kStepsBack, never_closes);
    for_every_algorithm("steps back never close, with all else",
                        kStepsBack | kSeveralRates | kIntervals | kCountAll, never_closes);
}

// A clock that is set back over the edge of a window again and again does not renew the quota each time.
bool opens_nothing(const Policy& policy, Micros edge, Micros swing) {
    Client client(policy);
    std::vector<Admission> all;
    Micros passed = 0;
    for (int i = 0; i < 200; ++i) {
        for (const Micros now : {edge - swing, edge + swing}) {
            for (int n = 0; n < 12; ++n) {
                if (client.request(now).allowed) {
                    all.push_back({passed, 1});
                }
            }
            passed += now < edge ? 2 * swing : 0;
        }
    }
    if (within_bound(policy, all)) {
        return true;
    }
    print_error("%s: %zu admitted in %ld s\n", algorithm_name(policy.algorithm), all.size(),
                static_cast<long>(passed / kSecond));
    return false;
}

void check_oscillations(Micros swing) {
    Policy first = policy_of(Algorithm::kFixedWindow, "10r/h");
    first.align_first = true;
    bool kept = opens_nothing(first, kMidnight, swing);
    for (const Algorithm algorithm : kEveryAlgorithm) {
        kept &= opens_nothing(policy_of(algorithm, "10r/h"), kMidnight, swing);
    }
    assert_true(kept);
}

void test_a_clock_that_wavers_at_the_edge_of_a_window_opens_nothing(void**) {
    check_oscillations(1);
    check_oscillations(kClockSlack / 2);
}

void test_a_clock_set_back_again_and_again_over_the_edge_of_a_window_opens_nothing(void**) {
    check_oscillations(kClockSlack);
    check_oscillations(kMinute);
}

// After the clock was set back, no window is shorter than its period.
void test_no_bound_is_exceeded_when_windows_were_put_out_of_step(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = policy_of(algorithm, "10r/h");
        Client client(policy);
        client.request(kMidnight + 30 * kMinute);
        const Micros back = kMidnight - kSecond;
        client.refused(back);
        std::vector<Admission> all;
        for (const Micros now :
             {back + kHour - 1, back + kHour, kMidnight + kHour, kMidnight + 2 * kHour - 1}) {
            all.push_back({now, client.admitted(now, 20)});
        }
        assert_true(within_bound(policy, all));
    }
}

void test_a_clock_a_little_behind_stands_still_until_it_has_caught_up(void**) {
    for (const Algorithm algorithm :
         {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra, Algorithm::kSlidingLog}) {
        Client client(policy_of(algorithm, "1r/s"));
        assert_true(client.request(kMidnight).allowed);
        for (const Micros behind : {Micros{1}, Micros{50'000}, kClockSlack}) {
            assert_int_equal(client.peek(kMidnight - behind).retry_after, kSecond + behind);
            assert_int_equal(client.look(kMidnight - behind).reset_after, kSecond + behind);
        }
    }
}

void test_a_clock_further_behind_was_set_back_and_the_state_follows_it(void**) {
    for (const Algorithm algorithm :
         {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra, Algorithm::kSlidingLog}) {
        for (const Micros behind : {kClockSlack + 1, kHour, 3 * kYear}) {
            Client client(policy_of(algorithm, "1r/s"));
            client.request(kMidnight);
            const Decision decision = client.request(kMidnight - behind);
            assert_false(decision.allowed);
            assert_int_equal(decision.retry_after, kSecond);
            assert_true(client.peek(kMidnight - behind + kSecond).allowed);
            assert_false(client.peek(kMidnight - behind + kSecond - 1).allowed);
        }
    }
}

// The rejected request wrote that the clock was set back: the next one counts from there.
void test_a_rejection_after_a_step_back_does_not_start_the_wait_anew(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(policy_of(algorithm, "1r/m"));
        client.request(kMidnight);
        Micros now = kMidnight - kHour + kSecond;
        const Decision told = client.request(now);
        for (int i = 1; i <= 3; ++i) {
            now += kSecond;
            assert_int_equal(client.request(now).retry_after, told.retry_after - i * kSecond);
        }
    }
}

void test_min_interval_survives_steps_back(void**) {
    Policy policy = policy_of(Algorithm::kTokenBucket, "100r/s");
    policy.min_interval = 10 * kSecond;
    Client client(policy);
    assert_true(client.request(kMidnight).allowed);
    assert_int_equal(client.peek(kMidnight - 1000).retry_after, 10 * kSecond + 1000);
    assert_int_equal(client.request(kMidnight - kHour).retry_after, 10 * kSecond);
    assert_int_equal(client.request(kMidnight - kHour + kSecond).retry_after, 9 * kSecond);
    assert_true(client.request(kMidnight - kHour + 10 * kSecond).allowed);
}

void test_a_client_long_gone_has_its_whole_quota(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const Micros gap : {kYear, 9 * kYear, 80 * kYear}) {
            Client client(policy_of(algorithm, "5r/w,50r/366d"));
            assert_int_equal(client.admitted(kMidnight, 7), 5);
            const Decision decision = client.look(kMidnight + gap + 2 * kDay);
            assert_int_equal(decision.remaining, decision.limit);
            assert_int_equal(decision.reset_after, 0);
            assert_int_equal(client.admitted(kMidnight + gap + 2 * kDay, 7), 5);
        }
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_back_never_open_a_limit),
        cmocka_unit_test(test_a_step_back_gives_nothing_back),
        cmocka_unit_test(test_steps_back_never_close_a_limit),
        cmocka_unit_test(test_a_clock_that_wavers_at_the_edge_of_a_window_opens_nothing),
        cmocka_unit_test(test_a_clock_set_back_again_and_again_over_the_edge_of_a_window_opens_nothing),
        cmocka_unit_test(test_no_bound_is_exceeded_when_windows_were_put_out_of_step),
        cmocka_unit_test(test_a_clock_a_little_behind_stands_still_until_it_has_caught_up),
        cmocka_unit_test(test_a_clock_further_behind_was_set_back_and_the_state_follows_it),
        cmocka_unit_test(test_a_rejection_after_a_step_back_does_not_start_the_wait_anew),
        cmocka_unit_test(test_min_interval_survives_steps_back),
        cmocka_unit_test(test_a_client_long_gone_has_its_whole_quota),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
