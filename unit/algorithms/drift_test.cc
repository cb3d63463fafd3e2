// Over a million requests, every algorithm admits the same as exact arithmetic.
#include <random>

#include "client.h"
#include "model.h"
#include "test.h"

namespace rate_limit {
namespace {

constexpr int kRequests = 1'000'000;

// Requests come at random, on average as often as they are admitted: a rounding error would tip a decision
// soon.
void check_drift(Policy policy) {
    const Rate& rate = policy.rates.rates[0];
    const Micros apart = 2 * rate.period / rate.count;
    Client client(policy);
    Model model(policy, rate);
    std::mt19937_64 random(rate.count);
    std::uint64_t admitted = 0;
    std::uint64_t exact = 0;
    Micros now = kMidnight;
    for (int i = 0; i < kRequests; ++i) {
        now += static_cast<Micros>(random() % static_cast<std::uint64_t>(apart + 2));
        admitted += client.request(now).allowed ? 1 : 0;
        if (model.fits(now, 1)) {
            model.charge(now, 1);
            exact++;
        }
        if (admitted != exact) {
            fail_msg("%s %lur/%lds: request %d: %lu admitted, %lu in exact arithmetic",
                     algorithm_name(policy.algorithm), rate.count, static_cast<long>(rate.period / kSecond),
                     i, static_cast<unsigned long>(admitted), static_cast<unsigned long>(exact));
        }
    }
    assert_true(admitted > kRequests / 4);
    assert_int_equal(client.look(now).remaining, model.remaining(now));
    assert_int_equal(client.look(now).reset_after, model.reset_after(now));
}

void check_drifts(Algorithm algorithm) {
    for (const char* rate : {"7r/s", "3r/7s", "999999937r/w", "1009r/13m"}) {
        Policy policy = policy_of(algorithm, rate);
        if (algorithm == Algorithm::kSlidingLog && policy.rates.rates[0].count > kMaxLogEntries) {
            continue;
        }
        check_drift(policy);
    }
}

void test_token_bucket_does_not_drift(void**) { check_drifts(Algorithm::kTokenBucket); }
void test_leaky_bucket_does_not_drift(void**) { check_drifts(Algorithm::kLeakyBucket); }
void test_gcra_does_not_drift(void**) { check_drifts(Algorithm::kGcra); }
void test_fixed_window_does_not_drift(void**) { check_drifts(Algorithm::kFixedWindow); }
void test_sliding_window_does_not_drift(void**) { check_drifts(Algorithm::kSlidingWindow); }
void test_sliding_buckets_does_not_drift(void**) { check_drifts(Algorithm::kSlidingBuckets); }
void test_sliding_log_does_not_drift(void**) { check_drifts(Algorithm::kSlidingLog); }

// A client that asks without pause is admitted capacity + rate × time, rounded down: not one more or less.
void test_a_greedy_client_gets_exactly_the_rate(void**) {
    for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra}) {
        for (const char* rate : {"7r/s", "3r/7s", "999999937r/w"}) {
            Policy policy = policy_of(algorithm, rate);
            policy.burst = 0;
            policy.capacity = algorithm == Algorithm::kTokenBucket ? 1 : 0;
            const Rate& r = policy.rates.rates[0];
            Client client(policy);
            Micros now = kMidnight;
            std::uint64_t admitted = 0;
            for (int i = 0; i < 200'000; ++i) {
                const Decision decision = client.request(now);
                admitted += decision.allowed ? 1 : 0;
                now += decision.allowed ? 0 : decision.retry_after;
            }
            const Int128 exact = 1 + static_cast<Int128>(now - kMidnight) * r.count / r.period;
            // Each admission is late by less than a microsecond, and nothing else is lost.
            const Int128 least = 1 + static_cast<Int128>(now - kMidnight - 200'000) * r.count / r.period;
            assert_true(static_cast<Int128>(admitted) <= exact);
            assert_true(static_cast<Int128>(admitted) >= least - 1);
        }
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_token_bucket_does_not_drift),
        cmocka_unit_test(test_leaky_bucket_does_not_drift),
        cmocka_unit_test(test_gcra_does_not_drift),
        cmocka_unit_test(test_fixed_window_does_not_drift),
        cmocka_unit_test(test_sliding_window_does_not_drift),
        cmocka_unit_test(test_sliding_buckets_does_not_drift),
        cmocka_unit_test(test_sliding_log_does_not_drift),
        cmocka_unit_test(test_a_greedy_client_gets_exactly_the_rate),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
