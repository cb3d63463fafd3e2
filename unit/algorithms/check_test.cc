// A check over several rates, with min_interval and count=all, and the weight of a state.
#include "client.h"
#include "expect.h"

namespace rate_limit {
namespace {

Policy spaced(Algorithm algorithm, const char* rates, Micros min_interval) {
    Policy policy = policy_of(algorithm, rates);
    policy.min_interval = min_interval;
    return policy;
}

Policy counting_all(Algorithm algorithm, const char* rates) {
    Policy policy = policy_of(algorithm, rates);
    policy.count_all = true;
    return policy;
}

void test_a_client_without_state_is_one_never_seen(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = spaced(algorithm, "5r/m,10r/h", kSecond);
        const StateLayout layout = layout_of(policy);
        const std::vector<std::uint64_t> zero(words_of(layout));
        for (const std::uint64_t cost : {0U, 1U, 5U, 6U}) {
            Check a;
            Check b;
            const Decision none = a.evaluate(policy, layout, nullptr, kMidnight, cost);
            const Decision unseen = b.evaluate(policy, layout, zero.data(), kMidnight, cost);
            assert_int_equal(none.allowed, cost <= 5);
            assert_int_equal(none.allowed, unseen.allowed);
            assert_int_equal(none.remaining, unseen.remaining);
            assert_int_equal(none.reset_after, unseen.reset_after);
            assert_int_equal(none.retry_after, unseen.retry_after);
        }
    }
}

// If one rate rejects, the others have not been charged either: not a word changes.
void test_a_rejected_request_is_charged_to_no_rate(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(spaced(algorithm, "3r/m,1000r/h", 1));
        client.policy().burst = algorithm == Algorithm::kLeakyBucket || algorithm == Algorithm::kGcra ? 2 : 0;
        for (Micros i = 0; i < 3; ++i) {
            assert_true(client.request(kMidnight + i).allowed);
        }
        const std::vector<std::uint64_t> before = client.state();
        assert_false(client.request(kMidnight + 3).allowed);
        assert_true(client.state() == before);
        assert_false(client.request(kMidnight + 3, 500).allowed);
        assert_true(client.state() == before);
    }
}

// The same for a request that this limit admits and another limit rejects.
void test_a_request_that_another_limit_rejects_is_not_charged(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(spaced(algorithm, "3r/m,1000r/h", 1));
        client.request(kMidnight);
        const std::vector<std::uint64_t> before = client.state();
        assert_true(client.refused(kMidnight + kSecond).allowed);
        assert_true(client.state() == before);
    }
}

void test_the_rate_that_leaves_least_is_reported(void**) {
    for (const Algorithm algorithm :
         {Algorithm::kTokenBucket, Algorithm::kFixedWindow, Algorithm::kSlidingWindow,
          Algorithm::kSlidingBuckets, Algorithm::kSlidingLog}) {
        Client client(policy_of(algorithm, "10r/s,12r/h,100r/d"));
        Decision decision = client.request(kMidnight);
        assert_int_equal(decision.rate, 0);
        assert_int_equal(decision.limit, 10);
        assert_int_equal(decision.remaining, 9);
        assert_true(client.request(kMidnight, 9).allowed);
        decision = client.request(kMidnight + 5 * kSecond);
        assert_int_equal(decision.rate, 1);
        assert_int_equal(decision.limit, 12);
        assert_int_equal(decision.remaining, 1);
    }
}

void test_of_rates_that_reject_the_longest_wait_is_reported(void**) {
    for (const char* rates : {"2r/m,2r/h,2r/s", "2r/h,2r/m,2r/s", "2r/s,2r/m,2r/h"}) {
        Client client(policy_of(Algorithm::kSlidingLog, rates));
        client.request(kMidnight, 2);
        const Decision decision = client.request(kMidnight);
        assert_rejected(decision, 0, kHour, kHour);
        assert_int_equal(client.policy().rates.rates[decision.rate].period, kHour);
    }
    for (const char* rates : {"5r/m,2r/s", "2r/s,5r/m"}) {
        Client client(policy_of(Algorithm::kSlidingLog, rates));
        assert_int_equal(client.request(kMidnight, 3).retry_after, kNever);
        assert_int_equal(client.request(kMidnight, 3).limit, 2);
    }
}

// The later rate's wait is longer by less than the clock is behind: it is still the longer one.
void test_waits_are_compared_on_one_clock(void**) {
    for (const char* rates : {"100r/s,99r/s", "99r/s,100r/s"}) {
        Policy policy = policy_of(Algorithm::kGcra, rates);
        policy.burst = 0;
        Client client(policy);
        client.request(kMidnight);
        const Decision decision = client.request(kMidnight - 50'000);
        assert_int_equal(decision.retry_after, 50'000 + 10'102);
        assert_int_equal(client.policy().rates.rates[decision.rate].count, 99);
    }
}

void test_eight_rates_hold_together(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Policy policy = policy_of(algorithm, "99r/s,98r/m,97r/h,96r/d,95r/2d,94r/3d,93r/w,92r/2w");
        if (policy.burst != 0) {
            policy.burst = 91;
        }
        Client client(policy);
        assert_int_equal(client.admitted(kMidnight, 120), 92);
    }
}

void test_admitted_requests_are_min_interval_apart(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(spaced(algorithm, "100r/s", 20'000));
        assert_true(client.request(kMidnight).allowed);
        const Decision decision = client.request(kMidnight + 5'000);
        assert_false(decision.allowed);
        assert_int_equal(decision.retry_after, 15'000);
        assert_int_equal(decision.limit, 100);
        assert_int_equal(decision.remaining, 0);
        assert_false(client.request(kMidnight).allowed);
        assert_false(client.request(kMidnight + 19'999).allowed);
        assert_true(client.request(kMidnight + 20'000).allowed);
        assert_false(client.request(kMidnight + 39'999).allowed);
        assert_true(client.request(kMidnight + 45'000).allowed);
        assert_false(client.request(kMidnight + 60'000).allowed);
        assert_true(client.request(kMidnight + 65'000).allowed);
    }
}

void test_the_longer_of_min_interval_and_rate_is_waited_for(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client rate(spaced(algorithm, "1r/m", kSecond));
        rate.request(kMidnight);
        assert_int_equal(rate.request(kMidnight).retry_after,
                         algorithm == Algorithm::kSlidingWindow ? 2 * kMinute : kMinute);
        Client interval(spaced(algorithm, "1r/s", kMinute));
        interval.request(kMidnight);
        assert_int_equal(interval.request(kMidnight).retry_after, kMinute);
        Client never(spaced(algorithm, "1r/s", kMinute));
        never.request(kMidnight);
        assert_int_equal(never.request(kMidnight, 2).retry_after, kNever);
    }
}

// The request is not charged, so the quota is back at the same time as without it.
void test_a_request_too_early_does_not_move_the_reset(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(spaced(algorithm, "10r/m", 3 * kSecond));
        client.request(kMidnight);
        const Micros now = kMidnight + kSecond;
        const Decision decision = client.request(now);
        assert_int_equal(decision.retry_after, 2 * kSecond);
        assert_int_equal(decision.reset_after, client.look(now).reset_after);
    }
}

void test_a_look_does_not_wait_for_min_interval(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(spaced(algorithm, "100r/s", kMinute));
        client.request(kMidnight);
        const Decision decision = client.look(kMidnight);
        assert_true(decision.allowed);
        assert_int_equal(decision.remaining, 99);
    }
}

// A client that never pauses is admitted once; with count=all each attempt starts the wait anew.
void test_rejected_requests_count_if_all_do(void**) {
    for (const Algorithm algorithm :
         {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra, Algorithm::kSlidingWindow,
          Algorithm::kSlidingBuckets, Algorithm::kSlidingLog}) {
        Client all(counting_all(algorithm, "2r/s"));
        Client allowed(policy_of(algorithm, "2r/s"));
        unsigned admitted = 0;
        for (Micros i = 0; i < 200; ++i) {
            all.request(kMidnight + i * 100'000);
            admitted += allowed.request(kMidnight + i * 100'000).allowed ? 1 : 0;
        }
        assert_true(admitted >= 20);
        assert_int_equal(all.look(kMidnight + 199 * 100'000).remaining, 0);
        const Decision decision = all.request(kMidnight + 200 * 100'000);
        assert_false(decision.allowed);
        assert_true(decision.retry_after >= kSecond / 2);
        assert_true(all.request(kMidnight + 200 * 100'000 + decision.retry_after).allowed);
    }
}

void test_a_fixed_window_forgets_the_rejected_with_the_rest(void**) {
    Client client(counting_all(Algorithm::kFixedWindow, "2r/s"));
    assert_int_equal(client.admitted(kMidnight, 9), 2);
    assert_rejected(client.request(kMidnight), 0, kSecond, kSecond);
    assert_int_equal(client.admitted(kMidnight + kSecond, 9), 2);
}

// Each rate counts the requests that any of the rates rejects.
void test_a_request_that_one_rate_rejects_counts_under_all_if_all_do(void**) {
    for (const Algorithm algorithm :
         {Algorithm::kTokenBucket, Algorithm::kFixedWindow, Algorithm::kSlidingWindow,
          Algorithm::kSlidingBuckets, Algorithm::kSlidingLog}) {
        Client client(counting_all(algorithm, "1r/s,10r/d"));
        for (Micros i = 0; i < 10; ++i) {
            client.request(kMidnight);
        }
        const Decision decision = client.request(kMidnight + 10 * kSecond);
        assert_false(decision.allowed);
        assert_int_equal(decision.rate, 1);
    }
}

void test_a_request_that_another_limit_rejects_counts_if_all_do(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(counting_all(algorithm, "3r/m"));
        assert_true(client.refused(kMidnight).allowed);
        assert_int_equal(client.look(kMidnight).remaining, 2);
    }
}

// Rejected requests raise the level at most to the limit: the quota is back after the time of one quota.
void test_counting_all_stays_within_bounds(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(counting_all(algorithm, "3r/m"));
        for (int i = 0; i < 5000; ++i) {
            client.request(kMidnight, kMaxCost);
        }
        const Decision decision = client.request(kMidnight);
        assert_false(decision.allowed);
        assert_true(decision.retry_after > 0 && decision.retry_after <= 2 * kMinute);
        assert_true(client.peek(kMidnight + 2 * kMinute, 3).allowed);
    }
}

void test_nothing_is_forgotten_with_a_client_at_full_quota(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(spaced(algorithm, "5r/m,50r/h", kSecond));
        assert_int_equal(client.weight(kMidnight), 0);
        client.request(kMidnight);
        assert_true(client.weight(kMidnight) > 0);
        assert_int_equal(client.weight(kMidnight + 2 * kHour), 0);
    }
    Client off(policy_of(Algorithm::kTokenBucket, "off"));
    assert_int_equal(off.weight(kMidnight), 0);
}

void test_who_has_used_more_weighs_more(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(policy_of(algorithm, "100r/m"));
        std::uint64_t before = 0;
        for (int i = 0; i < 100; ++i) {
            assert_true(client.request(kMidnight).allowed);
            assert_true(client.weight(kMidnight) > before);
            before = client.weight(kMidnight);
        }
        // A part of a larger quota counts as a part: 100 of 100 outweigh 150 of 1000.
        Client other(policy_of(algorithm, "1000r/m"));
        other.request(kMidnight, 150);
        assert_true(other.weight(kMidnight) < before);
    }
}

void test_among_equals_the_longer_memory_weighs_more(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client minute(policy_of(algorithm, "10r/m"));
        Client hour(policy_of(algorithm, "10r/h"));
        minute.request(kMidnight, 10);
        hour.request(kMidnight, 10);
        assert_true(minute.weight(kMidnight) < hour.weight(kMidnight));
    }
}

// Between admissions of a rate that has long refilled, the interval alone is still remembered, and only just.
void test_a_client_within_its_min_interval_weighs_a_little(void**) {
    Client waiting(spaced(Algorithm::kTokenBucket, "100r/s", kMinute));
    waiting.request(kMidnight);
    Client using_quota(spaced(Algorithm::kTokenBucket, "100r/s", kMinute));
    const Micros now = kMidnight + 30 * kSecond;
    using_quota.request(now);
    assert_true(waiting.weight(now) > 0);
    assert_true(waiting.weight(now) < using_quota.weight(now));
    assert_true(waiting.weight(now) > waiting.weight(now + kSecond));
    assert_int_equal(waiting.weight(kMidnight + kMinute), 0);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_client_without_state_is_one_never_seen),
        cmocka_unit_test(test_a_rejected_request_is_charged_to_no_rate),
        cmocka_unit_test(test_a_request_that_another_limit_rejects_is_not_charged),
        cmocka_unit_test(test_the_rate_that_leaves_least_is_reported),
        cmocka_unit_test(test_of_rates_that_reject_the_longest_wait_is_reported),
        cmocka_unit_test(test_waits_are_compared_on_one_clock),
        cmocka_unit_test(test_eight_rates_hold_together),
        cmocka_unit_test(test_admitted_requests_are_min_interval_apart),
        cmocka_unit_test(test_the_longer_of_min_interval_and_rate_is_waited_for),
        cmocka_unit_test(test_a_request_too_early_does_not_move_the_reset),
        cmocka_unit_test(test_a_look_does_not_wait_for_min_interval),
        cmocka_unit_test(test_rejected_requests_count_if_all_do),
        cmocka_unit_test(test_a_fixed_window_forgets_the_rejected_with_the_rest),
        cmocka_unit_test(test_a_request_that_one_rate_rejects_counts_under_all_if_all_do),
        cmocka_unit_test(test_a_request_that_another_limit_rejects_counts_if_all_do),
        cmocka_unit_test(test_counting_all_stays_within_bounds),
        cmocka_unit_test(test_nothing_is_forgotten_with_a_client_at_full_quota),
        cmocka_unit_test(test_who_has_used_more_weighs_more),
        cmocka_unit_test(test_among_equals_the_longer_memory_weighs_more),
        cmocka_unit_test(test_a_client_within_its_min_interval_weighs_a_little),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
