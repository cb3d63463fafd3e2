// The parts of a limit for several instances add up to the limit.
#include "core/share.h"

#include "client.h"
#include "test.h"

namespace rate_limit {
namespace {

Policy part(const Policy& policy, std::uint32_t instances, std::uint32_t rank) {
    return part_of(policy, Share{instances, rank});
}

const std::uint64_t kNumbers[] = {
    1, 2, 3, 5, 7, 10, 99, 100, 101, 1000, 65'537, 999'999'999, 1'000'000'000, kMaxCount};

void test_alone_an_instance_has_everything(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Policy policy = policy_of(algorithm, "10r/s,100r/m,1r/366d");
        policy.capacity = algorithm == Algorithm::kTokenBucket ? 7 : 0;
        policy.delay = algorithm == Algorithm::kLeakyBucket ? 3 : kNoDelay;
        for (const Share& share : {Share{}, Share{1, 0}, Share{0, 0}}) {
            const Policy same = part_of(policy, share);
            assert_int_equal(same.rates.size, 3);
            for (unsigned i = 0; i < 3; i++) {
                assert_int_equal(same.rates.rates[i].count, policy.rates.rates[i].count);
                assert_int_equal(same.rates.rates[i].period, policy.rates.rates[i].period);
            }
            assert_int_equal(same.burst, policy.burst);
            assert_int_equal(same.capacity, policy.capacity);
            assert_int_equal(same.delay, policy.delay);
        }
    }
}

void test_counts_add_up_to_the_whole(void**) {
    for (const std::uint64_t count : kNumbers) {
        Policy policy;
        policy.rates.size = 1;
        policy.rates.rates[0] = {count, kMinute};
        for (const std::uint32_t instances : {2U, 3U, 4U, 7U, 10U, 97U, 1000U}) {
            if (count < instances) {
                continue;
            }
            std::uint64_t sum = 0;
            std::uint64_t least = kMaxCount;
            std::uint64_t most = 0;
            for (std::uint32_t rank = 0; rank < instances; rank++) {
                const Rate rate = part(policy, instances, rank).rates.rates[0];
                assert_int_equal(rate.period, kMinute);
                sum += rate.count;
                least = std::min(least, rate.count);
                most = std::max(most, rate.count);
            }
            assert_int_equal(sum, count);
            assert_in_range(most - least, 0, 1);  // nobody is favoured
            assert_true(least != 0);
        }
    }
}

void test_fewer_requests_than_instances_are_one_in_a_longer_time(void**) {
    const struct {
        const char* rate;
        std::uint32_t instances;
        Micros period;
    } cases[] = {
        {"1r/s", 2, 2 * kSecond},
        {"1r/s", 3, 3 * kSecond},
        {"2r/s", 3, 2 * kSecond},
        {"3r/s", 4, 2 * kSecond},
        {"2r/m", 3, 90 * kSecond},
        {"99r/m", 100, 61 * kSecond},
        {"1r/h", 1000, 1000 * kHour},
        {"1r/366d", 2, kMaxPeriod},
        {"2r/366d", 1'000'000, kMaxPeriod},
        {"5r/w", 1'000'000, kMaxPeriod},
        {"999999r/s", 1'000'000, 2 * kSecond},
    };
    for (const auto& each : cases) {
        const Policy policy = policy_of(Algorithm::kSlidingWindow, each.rate);
        for (const std::uint32_t rank : {0U, 1U, each.instances - 1}) {
            const Rate rate = part(policy, each.instances, rank).rates.rates[0];
            assert_int_equal(rate.count, 1);
            assert_int_equal(rate.period, each.period);
        }
    }
}

// In the long run never more than the limit, unless a period is already the longest.
void test_parts_are_never_more_than_the_whole(void**) {
    for (std::uint32_t count = 1; count <= 40; count++) {
        for (const Micros period : {kSecond, 7 * kSecond, kMinute, kHour, kDay}) {
            for (std::uint32_t instances = 2; instances <= 60; instances++) {
                Policy policy;
                policy.rates.size = 1;
                policy.rates.rates[0] = {count, period};
                double sum = 0;
                for (std::uint32_t rank = 0; rank < instances; rank++) {
                    const Rate rate = part(policy, instances, rank).rates.rates[0];
                    assert_in_range(rate.period, period, kMaxPeriod);
                    assert_int_equal(rate.period % kSecond, 0);
                    sum += static_cast<double>(rate.count) / static_cast<double>(rate.period);
                }
                const double whole = static_cast<double>(count) / static_cast<double>(period);
                assert_true(sum <= whole * (1 + 1e-9));
                assert_true(sum >= whole * 0.5);
            }
        }
    }
}

void test_each_rate_is_divided_by_itself(void**) {
    const Policy policy = policy_of(Algorithm::kSlidingWindow, "1r/s,10r/m,100r/h");
    const Policy first = part(policy, 4, 0);
    const Policy last = part(policy, 4, 3);
    assert_int_equal(first.rates.size, 3);
    assert_int_equal(first.rates.rates[0].count, 1);
    assert_int_equal(first.rates.rates[0].period, 4 * kSecond);
    assert_int_equal(first.rates.rates[1].count, 3);
    assert_int_equal(last.rates.rates[1].count, 2);
    assert_int_equal(last.rates.rates[1].period, kMinute);
    assert_int_equal(first.rates.rates[2].count, 25);
    assert_int_equal(part(policy_of(Algorithm::kGcra, "off"), 4, 0).rates.size, 0);
}

void test_bursts_and_capacities_are_divided_too(void**) {
    for (const std::uint32_t number : kNumbers) {
        for (const std::uint32_t instances : {2U, 3U, 10U, 1000U}) {
            Policy bucket = policy_of(Algorithm::kTokenBucket, "1000r/s");
            bucket.capacity = number;
            Policy queue = policy_of(Algorithm::kLeakyBucket, "1000r/s");
            queue.burst = number - 1;
            queue.delay = number / 2;
            std::uint64_t capacity = 0;
            std::uint64_t burst = 0;
            std::uint64_t delay = 0;
            for (std::uint32_t rank = 0; rank < instances; rank++) {
                const Policy own = part(bucket, instances, rank);
                assert_true(capacity_of(own, own.rates.rates[0]) != 0);  // or nobody would ever be admitted
                capacity += own.capacity;
                burst += part(queue, instances, rank).burst;
                delay += part(queue, instances, rank).delay;
            }
            assert_int_equal(capacity, std::max(number, instances));
            assert_int_equal(burst, number - 1);
            assert_int_equal(delay, number / 2);
        }
    }
    // Without a capacity of its own a bucket has that of its rate.
    assert_int_equal(part(policy_of(Algorithm::kTokenBucket, "10r/s"), 3, 0).capacity, 0);
    // Without a delay there is none to divide.
    assert_int_equal(part(policy_of(Algorithm::kLeakyBucket, "10r/s"), 3, 0).delay, kNoDelay);
}

void test_what_is_no_number_of_requests_stays(void**) {
    Policy policy = policy_of(Algorithm::kFixedWindow, "10r/s");
    policy.align_first = policy.count_all = true;
    policy.min_interval = 50'000;
    policy.ceiling = 12;
    policy.buckets = 20;
    const Policy own = part(policy, 3, 1);
    assert_true(own.algorithm == Algorithm::kFixedWindow && own.align_first && own.count_all && !own.debt);
    assert_int_equal(own.min_interval, 50'000);
    assert_int_equal(own.ceiling, 12);
    assert_int_equal(own.buckets, 20);
}

// The requests that all instances admit at once, and over a longer time, for each algorithm.
void test_together_instances_admit_the_whole(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = policy_of(algorithm, "10r/m");
        const StateLayout layout = layout_of(policy);
        for (const std::uint32_t instances : {2U, 3U, 4U, 10U}) {
            unsigned at_once = 0;
            unsigned in_ten_minutes = 0;
            for (std::uint32_t rank = 0; rank < instances; rank++) {
                const Policy own = part(policy, instances, rank);
                assert_true(holds(layout, own));
                Client client(own, layout);
                at_once += client.admitted(kMidnight, 20);
                for (Micros now = kMidnight; now < kMidnight + 10 * kMinute; now += kSecond / 2) {
                    in_ten_minutes += client.admitted(now, 2);
                }
            }
            // A burst comes on top of one request, which each instance has.
            const bool extra = algorithm == Algorithm::kLeakyBucket || algorithm == Algorithm::kGcra;
            assert_int_equal(at_once, extra ? 9 + instances : 10);
            // A sliding window of one request has room for the next in every other minute.
            assert_in_range(at_once + in_ten_minutes, 50, 110 + (extra ? instances : 0));
        }
    }
}

// When the number of instances changes, periods change, and what was used stays used.
void test_a_client_goes_on_when_the_share_changes(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const char* rates : {"10r/d", "2r/h,10r/d", "1r/h,24r/d"}) {
            const Policy policy = policy_of(algorithm, rates);
            const StateLayout layout = layout_of(policy);
            Client client(part(policy, 2, 0), layout);
            unsigned admitted = 0;
            for (const std::uint32_t instances : {2U, 3U, 4U, 1U, 5U, 2U}) {
                client.policy() = part(policy, instances, 0);
                assert_true(holds(layout, client.policy()));
                admitted += client.admitted(kMidnight + kHour / 2, 20);
            }
            if (admitted == 0 || admitted > capacity_of(policy, policy.rates.rates[0])) {
                fail_msg("%s %s: %u", algorithm_name(algorithm), rates, admitted);
            }
        }
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_alone_an_instance_has_everything),
        cmocka_unit_test(test_counts_add_up_to_the_whole),
        cmocka_unit_test(test_fewer_requests_than_instances_are_one_in_a_longer_time),
        cmocka_unit_test(test_parts_are_never_more_than_the_whole),
        cmocka_unit_test(test_each_rate_is_divided_by_itself),
        cmocka_unit_test(test_bursts_and_capacities_are_divided_too),
        cmocka_unit_test(test_what_is_no_number_of_requests_stays),
        cmocka_unit_test(test_together_instances_admit_the_whole),
        cmocka_unit_test(test_a_client_goes_on_when_the_share_changes),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
