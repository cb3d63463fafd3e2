// Redis and core make the same decisions, keep the same state and expire it at the same time. With RL_LONG in
// the environment, over a million steps.
#include "lua/differential.h"

namespace rate_limit {
namespace {

constexpr Kind kKinds[] = {
    {"plain", kPlain, 1},
    {"steps of the clock", kStepsBack, 1},
    {"steady requests", kSteady, 1},
    {"steady requests and new limits", kSteady | kRateChanges | kStepsBack, 1},
    {"several rates", kSeveralRates | kStepsBack, 1},
    {"new rates", kRateChanges | kStepsBack, 1},
    {"new lists of rates", kRateChanges | kSeveralRates | kStepsBack, 1},
    {"min_interval", kIntervals | kStepsBack | kRateChanges, 1},
    {"count=all", kCountAll | kStepsBack | kRateChanges, 1},
    {"everything", kCountAll | kIntervals | kStepsBack | kRateChanges | kSeveralRates, 1},
    {"several limits", kStepsBack, 4},
    {"several limits and everything", kCountAll | kIntervals | kStepsBack | kRateChanges | kSeveralRates, 4},
};

bool whole = false;  // over a million steps

void test_redis_decides_as_core_does(void**) {
    compare_with(server_programs()[0], kKinds);
    assert_true(steps >= 1'000'000 || !whole);
}

// 65501 * 2409415184501 is a multiple of the period plus 1, and too large to be exact in a double.
void test_what_overlaps_of_the_window_before_is_exact(void**) {
    constexpr Micros kPeriod = 30 * kDay;
    constexpr Micros kLeft = 2'409'415'184'501;
    const ScenarioZone zone = {policy_of(Algorithm::kSlidingWindow, "70000r/30d"), false, 0, 0, false};
    Scenario scenario = {{zone}, 600 * kPeriod, {}};
    for (const auto& [move, cost] :
         {std::pair<Micros, std::uint32_t>{1, 65501}, {2 * kPeriod - kLeft - 2, 1}, {1, 1}}) {
        Event event = {};
        event.move = move;
        event.times = 1;
        event.limits.push_back({0, 0, cost});
        scenario.events.push_back(event);
    }
    start_server(server_programs()[0]);
    assert_true(rc::check("Redis agrees", [&] { redis_agrees(scenario); }));
}

// As in calls to a node of a Cluster.
void test_redis_decides_the_same_for_keys_that_are_not_declared(void**) {
    declared = false;
    compare_with(server_programs()[0], std::vector<Kind>{kKinds[0], kKinds[std::size(kKinds) - 1]});
    declared = true;
}

void test_a_ring_decides_as_core_does(void**) { compare_rings(kKinds); }

void test_a_ring_decides_the_same_if_its_key_is_not_declared(void**) {
    declared = false;
    compare_rings(std::vector<Kind>{kKinds[0], kKinds[std::size(kKinds) - 1]});
    declared = true;
}

// Valkey runs the same scripts. A few scenarios show that they work there.
void test_valkey_decides_as_core_does(void**) {
    const std::vector<std::string> programs = server_programs();
    assert_int_equal(programs.size(), 2);
    compare_with(programs[1], std::vector<Kind>{kKinds[std::size(kKinds) - 1]});
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    whole = whole_run();
    set_parameters("180");
    const CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_redis_decides_as_core_does, stop_server),
        cmocka_unit_test_teardown(test_what_overlaps_of_the_window_before_is_exact, stop_server),
        cmocka_unit_test_teardown(test_redis_decides_the_same_for_keys_that_are_not_declared, stop_server),
        cmocka_unit_test_teardown(test_a_ring_decides_as_core_does, stop_server),
        cmocka_unit_test_teardown(test_a_ring_decides_the_same_if_its_key_is_not_declared, stop_server),
        cmocka_unit_test_teardown(test_valkey_decides_as_core_does, stop_server),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
