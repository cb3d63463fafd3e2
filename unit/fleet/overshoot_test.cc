// rate_limiter_sync_overshoot_total is what a fleet admits beyond its limits, compared to an exact limiter of
// the same requests.
#include <cstdio>
#include <vector>

#include "client.h"
#include "simulation/arrivals.h"
#include "simulation/fleet.h"
#include "simulation/tally.h"
#include "test.h"

namespace rate_limit {
namespace {

using simulation::Arrival;
using simulation::Scenario;

constexpr Algorithm kSynced[] = {
    Algorithm::kTokenBucket, Algorithm::kLeakyBucket,   Algorithm::kGcra,
    Algorithm::kFixedWindow, Algorithm::kSlidingWindow, Algorithm::kSlidingBuckets,
};

// Fractions of the requests that the fleet has admitted.
struct Beyond {
    double exact;    // admitted more than by an exact limiter
    double counted;  // counted as overshoot
};

Beyond run(const char* title, const Scenario& scenario) {
    const std::vector<Arrival> arrivals = make_arrivals(scenario);
    simulation::Fleet fleet(scenario);
    simulation::Exact exact(scenario);
    simulation::Tally by_fleet(scenario);
    simulation::Tally by_exact(scenario);
    for (const Arrival& arrival : arrivals) {
        if (fleet.admits(arrival)) {
            by_fleet.add(arrival);
        }
        if (exact.admits(arrival)) {
            by_exact.add(arrival);
        }
    }
    assert_int_equal(fleet.evictions(), 0);
    const auto admitted = static_cast<double>(by_fleet.total());
    const simulation::Difference difference(by_fleet, by_exact, scenario.clients);
    const Beyond beyond = {static_cast<double>(difference.over) / admitted,
                           static_cast<double>(fleet.overshoot()) / admitted};
    std::printf("# %s, %s, %u instances, sync=%ldms: %.2f %% beyond the limit, %.2f %% counted\n", title,
                algorithm_name(scenario.policy.algorithm), scenario.instances,
                static_cast<long>(scenario.sync / 1000), 100 * beyond.exact, 100 * beyond.counted);
    return beyond;
}

Scenario scenario_of(Algorithm algorithm, const char* rate) {
    Scenario scenario;
    scenario.policy = policy_of(algorithm, rate);
    return scenario;
}

// The threshold of the alert RateLimiterSyncOvershoot.
constexpr double kMuch = 0.05;

// Clients that never rest send twice their limit.
void test_a_healthy_fleet_counts_requests_beyond_its_limits_and_few_others(void**) {
    for (const Algorithm algorithm : kSynced) {
        for (const std::uint32_t instances : {3, 10, 30}) {
            Scenario scenario = scenario_of(algorithm, "600r/m");
            scenario.instances = instances;
            const Beyond beyond = run("healthy", scenario);
            assert_true(beyond.counted < kMuch);
            assert_true(beyond.counted >= beyond.exact / 3);
            assert_true(beyond.counted <= beyond.exact + 0.015);
        }
    }
}

// Excess that a client makes up for by waiting is not counted: over a long time the rate holds.
void test_where_clients_make_up_for_excess_a_slow_rate_counts_little(void**) {
    for (const char* rate : {"10r/m", "10r/s", "30r/h"}) {
        for (const Algorithm algorithm :
             {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra}) {
            Scenario scenario = scenario_of(algorithm, rate);
            scenario.duration = 360 * scenario.policy.rates.rates[0].period;
            const Beyond beyond = run(rate, scenario);
            assert_true(beyond.counted < kMuch);
            assert_true(beyond.counted <= beyond.exact + 0.03);
        }
    }
}

// A limit below the number of instances is exceeded everywhere.
void test_excess_beyond_the_largest_debt_is_counted(void**) {
    for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra}) {
        Scenario scenario = scenario_of(algorithm, "1r/s");
        const Beyond beyond = run("1r/s", scenario);
        assert_true(beyond.exact > kMuch);
        assert_true(beyond.counted >= beyond.exact);
    }
}

void test_a_fleet_with_too_long_an_interval_counts_what_it_admits(void**) {
    for (const Algorithm algorithm : kSynced) {
        Scenario scenario = scenario_of(algorithm, "100r/m");
        scenario.sync = 5 * kSecond;
        scenario.instances = 10;
        scenario.load = 10;
        scenario.zipf = 0;
        const Beyond steady = run("sync= is too long", scenario);
        assert_true(steady.counted >= steady.exact * 0.9);
        assert_true(steady.counted <= steady.exact + 0.06);
        // Each time a client comes back after a rest, all instances admit it.
        scenario.on = 20 * kSecond;
        scenario.off = 600 * kSecond;
        scenario.load = 3;
        scenario.duration = kHour;
        const Beyond bursts = run("sync= is too long for bursts", scenario);
        assert_true(bursts.counted > kMuch);
        assert_true(bursts.counted >= bursts.exact * 0.9);
        assert_true(bursts.counted <= bursts.exact + 0.06);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_healthy_fleet_counts_requests_beyond_its_limits_and_few_others),
        cmocka_unit_test(test_where_clients_make_up_for_excess_a_slow_rate_counts_little),
        cmocka_unit_test(test_excess_beyond_the_largest_debt_is_counted),
        cmocka_unit_test(test_a_fleet_with_too_long_an_interval_counts_what_it_admits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
