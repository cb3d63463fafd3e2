// The largest and smallest of everything: counts, bursts, periods, costs and times.
#include "client.h"
#include "expect.h"
#include "model.h"

namespace rate_limit {
namespace {

// The latest time from which every window still ends within the times that state can hold.
constexpr Micros kLatest = kForever - 2 * kMaxPeriod;

constexpr Micros kTimes[] = {1, kSecond, kMidnight, kLatest};

Policy extreme(Algorithm algorithm, std::uint64_t count, Micros period) {
    Policy policy;
    policy.algorithm = algorithm;
    policy.rates.size = 1;
    policy.rates.rates[0] = {count, period};
    return policy;
}

// The numbers of the first requests, at any time, are those of exact arithmetic.
void check_against_model(const Policy& policy, Micros now) {
    Client client(policy);
    Model model(policy, policy.rates.rates[0]);
    for (const std::uint64_t cost : std::initializer_list<std::uint64_t>{
             1, 1'000'000, kMaxCost, 0, 1, kMaxCost - 1'000'002, kMaxCost - 1}) {
        const bool fits = cost == 0 || model.fits(now, cost);
        if (fits && cost != 0) {
            model.charge(now, cost);
        }
        const Decision decision = client.request(now, cost);
        assert_int_equal(decision.allowed, fits);
        assert_int_equal(decision.limit, model.limit());
        assert_int_equal(decision.remaining, model.remaining(now));
        assert_int_equal(decision.reset_after, model.reset_after(now));
        if (!fits) {
            assert_int_equal(decision.retry_after, model.retry_after(now, cost));
        }
    }
}

void test_the_largest_and_smallest_rates_are_exact_at_all_times(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const bool log = algorithm == Algorithm::kSlidingLog;
        const std::uint64_t most = log ? kMaxLogEntries : kMaxCount;
        const std::uint64_t small = log ? 1000 : kMaxSmallCount;
        for (const std::uint64_t count :
             std::initializer_list<std::uint64_t>{1, 2, small - 1, small, small + 1, most - 1, most}) {
            for (const Micros period : {kSecond, kMaxPeriod}) {
                for (const Micros now : kTimes) {
                    Policy policy = extreme(algorithm, count, period);
                    check_against_model(policy, now);
                    policy.burst =
                        algorithm == Algorithm::kLeakyBucket || algorithm == Algorithm::kGcra ? kMaxBurst : 0;
                    policy.capacity = algorithm == Algorithm::kTokenBucket ? kMaxCount : 0;
                    policy.delay = algorithm == Algorithm::kLeakyBucket ? 0 : kNoDelay;
                    check_against_model(policy, now);
                }
            }
        }
    }
}

// 2^53 requests at one in 366 days are 10^16 years: no wait is told as longer than kForever.
void test_no_wait_is_longer_than_forever(void**) {
    for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra}) {
        Policy policy = extreme(algorithm, 1, kMaxPeriod);
        policy.burst = kMaxBurst;
        policy.capacity = kMaxCount;
        policy.delay = algorithm == Algorithm::kLeakyBucket ? 0 : kNoDelay;
        Client client(policy);
        Decision decision = {};
        for (const std::uint64_t cost : {kMaxCost - 1, std::uint64_t{1}}) {
            decision = client.request(kMidnight, cost);
            assert_true(decision.allowed);
        }
        assert_int_equal(decision.remaining, 0);
        assert_int_equal(decision.reset_after, kForever);
        assert_int_equal(decision.delay, algorithm == Algorithm::kLeakyBucket ? kForever : 0);
        assert_int_equal(client.request(kMidnight, kMaxCost).retry_after, kForever);
        assert_int_equal(client.request(kMidnight).retry_after, kMaxPeriod);
        assert_true(client.weight(kMidnight) > 0);
    }
}

void test_a_large_quota_is_used_up_to_the_last(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        if (algorithm == Algorithm::kSlidingLog) {
            continue;
        }
        for (const std::uint64_t count : {kMaxSmallCount, kMaxSmallCount + 1, kMaxCount}) {
            Policy policy = extreme(algorithm, count, kMaxPeriod);
            const bool burst = algorithm == Algorithm::kLeakyBucket || algorithm == Algorithm::kGcra;
            policy.burst = burst ? count - 1 : 0;
            for (const Micros now : kTimes) {
                Client client(policy);
                for (std::uint64_t i = 1; i <= 1000; ++i) {
                    const Decision decision = client.request(now, count / 1000);
                    assert_true(decision.allowed);
                    assert_int_equal(decision.remaining, count - i * (count / 1000));
                }
                assert_true(count % 1000 == 0 || client.request(now, count % 1000).allowed);
                assert_false(client.request(now).allowed);
                assert_true(client.request(now).retry_after > 0);
            }
        }
    }
}

void test_the_largest_log_is_exact(void**) {
    Policy policy = extreme(Algorithm::kSlidingLog, kMaxLogEntries, kMaxPeriod);
    Client client(policy);
    constexpr std::uint64_t kMany = 1'000'000;
    assert_true(client.request(kMidnight, kMany).allowed);
    assert_true(client.request(kMidnight + 1, kMaxLogEntries - kMany).allowed);
    assert_rejected(client.request(kMidnight + 2), 0, kMaxPeriod - 1, kMaxPeriod - 2);
    assert_rejected(client.request(kMidnight + 2, kMany + 1), 0, kMaxPeriod - 1, kMaxPeriod - 1);
    assert_admitted(client.request(kMidnight + kMaxPeriod, kMany), 0, kMaxPeriod);
}

void test_counts_of_all_requests_do_not_overflow(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Policy policy =
            extreme(algorithm, algorithm == Algorithm::kSlidingLog ? 1000 : kMaxCount, kMaxPeriod);
        policy.count_all = true;
        policy.burst = algorithm == Algorithm::kLeakyBucket || algorithm == Algorithm::kGcra ? kMaxBurst : 0;
        Client client(policy);
        for (int i = 0; i < 10'000; ++i) {
            client.request(kMidnight, kMaxCost);
        }
        const Decision decision = client.request(kMidnight);
        assert_false(decision.allowed);
        assert_int_equal(decision.remaining, 0);
        assert_true(decision.retry_after > 0);
        assert_true(decision.retry_after <= 2 * kMaxPeriod);
    }
}

// As far as time goes and back again.
void test_the_whole_range_of_time_is_crossed_without_harm(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const char* rate : {"3r/s", "3r/366d"}) {
            Policy policy = policy_of(algorithm, rate);
            policy.min_interval = 1;
            Client client(policy);
            assert_true(client.request(1).allowed);
            assert_true(client.request(kLatest).allowed);
            assert_int_equal(client.look(kLatest).remaining, 2);
            client.refused(1);
            assert_int_equal(client.look(1).remaining, 2);
            assert_true(client.request(2).allowed);
            assert_true(client.request(3).allowed);
            const Decision decision = client.request(4);
            assert_false(decision.allowed);
            assert_true(decision.retry_after <= 2 * policy.rates.rates[0].period);
            assert_true(client.request(4 + decision.retry_after).allowed);
        }
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_largest_and_smallest_rates_are_exact_at_all_times),
        cmocka_unit_test(test_no_wait_is_longer_than_forever),
        cmocka_unit_test(test_a_large_quota_is_used_up_to_the_last),
        cmocka_unit_test(test_the_largest_log_is_exact),
        cmocka_unit_test(test_counts_of_all_requests_do_not_overflow),
        cmocka_unit_test(test_the_whole_range_of_time_is_crossed_without_harm),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
