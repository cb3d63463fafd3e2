// Instances that lease never admit more than the algorithm's promise, whatever their clocks, paces, deaths
// and the travel times of messages; and with even load they admit nearly as much as without leases.
#include <rapidcheck.h>

#include <set>

#include "client.h"
#include "simulation/leasing_fleet.h"
#include "test.h"

namespace rate_limit {
namespace {

using simulation::LeasingFleet;
using simulation::Use;

constexpr Micros kStart = kMidnight + 7 * kHour;
constexpr std::uint64_t kLongest = 4000;  // requests of a trace

struct Case {
    const char* name;
    Policy policy;
};

std::vector<Case> cases() {
    std::vector<Case> all;
    const auto add = [&](const char* name, Algorithm algorithm, const char* rates, std::uint64_t more = 0) {
        Policy policy;
        policy.algorithm = algorithm;
        policy.rates = rates_of(rates);
        policy.burst = takes<kTakesBurst>(algorithm) ? more : 0;
        policy.capacity = takes<kTakesCapacity>(algorithm) ? more : 0;
        all.push_back({name, policy});
    };
    add("fixed_window", Algorithm::kFixedWindow, "700r/s");
    add("fixed_window, two rates", Algorithm::kFixedWindow, "700r/s,1500r/3s");
    add("fixed_window, align=first", Algorithm::kFixedWindow, "700r/s");
    all.back().policy.align_first = true;
    add("sliding_window", Algorithm::kSlidingWindow, "700r/s");
    add("sliding_window, two rates", Algorithm::kSlidingWindow, "700r/s,1500r/3s");
    add("sliding_buckets", Algorithm::kSlidingBuckets, "700r/s");
    add("token_bucket", Algorithm::kTokenBucket, "700r/s");
    add("token_bucket, two rates", Algorithm::kTokenBucket, "1000r/s,700r/s", 100);
    add("leaky_bucket", Algorithm::kLeakyBucket, "1000r/s", 59);
    add("gcra", Algorithm::kGcra, "700r/s", 99);
    add("gcra, two rates", Algorithm::kGcra, "1000r/s,1200r/2s", 119);
    return all;
}

// Whether the limit would have admitted each use at its time, if uses were charged and nothing else.
bool is_kept(const Policy& policy, std::vector<Use> uses, const std::set<Micros>& windows) {
    std::stable_sort(uses.begin(), uses.end());
    if (policy.align_first) {
        std::map<Micros, std::uint64_t> used;
        for (const Use& use : uses) {
            const auto end = windows.upper_bound(use.time);
            const Micros window =
                end != windows.end() && use.time >= *end - policy.rates.rates[0].period ? *end : 0;
            used[window] += use.cost;
        }
        return std::all_of(used.begin(), used.end(), [&](const auto& entry) {
            return entry.first != 0 && entry.second <= policy.rates.rates[0].count;
        });
    }
    Client client(policy);
    return std::all_of(uses.begin(), uses.end(),
                       [&](const Use& use) { return client.request(use.time, use.cost).allowed; });
}

// A random trace.
LeasingFleet run_trace(const Policy& policy, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](std::uint64_t most) { return random() % (most + 1); };
    const LeaseSize size = pick(1) == 0 ? LeaseSize{1 + pick(60), true} : LeaseSize{2 + pick(100), false};
    LeasingFleet fleet(policy, size, 1 + pick(4), random(), {0, pick(2) == 0 ? 20'000 : 1'000}, kStart);
    fleet.lossy = true;
    std::uint64_t pace = 100;
    std::uint64_t busy = 0;
    for (std::uint64_t i = 0; i < kLongest; i++) {
        if (pick(300) == 0) {
            pace = 20 << pick(9);
            busy = pick(fleet.instances());
        }
        fleet.pass(static_cast<Micros>(pick(2'000'000 / pace)));
        const std::size_t number = busy < fleet.instances() ? busy : pick(fleet.instances() - 1);
        fleet.request(number, pick(20) == 0 ? 1 + pick(5) : 1, pick(15) == 0);
        if (pick(100) == 0) {
            fleet.keep(pick(fleet.instances() - 1), pick(5) == 0);
        }
        if (pick(1500) == 0) {
            fleet.kill(pick(fleet.instances() - 1));
        }
        if (pick(400) == 0) {
            fleet.pass(static_cast<Micros>(pick(1'500'000)));
        }
    }
    fleet.pass(kSecond);
    return fleet;
}

void test_no_trace_admits_more_than_the_promise(void**) {
    setenv("RC_PARAMS", "max_success=60", 0);
    bool kept = true;
    std::uint64_t leased = 0;
    for (const Case& one : cases()) {
        std::uint64_t own = 0;
        kept &= rc::check(std::string(one.name) + ": no more than the promise", [&] {
            const LeasingFleet fleet = run_trace(one.policy, *rc::gen::arbitrary<std::uint64_t>());
            RC_ASSERT(is_kept(one.policy, fleet.uses, fleet.redis().windows()));
            own += fleet.counts.leased;
        });
        // The property must not hold for want of leases.
        assert_true(own > 1000);
        leased += own;
    }
    assert_true(kept);
    assert_true(leased != 0);
}

// Even load of three instances, at a pace of `times` the limit.
LeasingFleet run_evenly(const Policy& policy, double times, Micros time) {
    LeasingFleet fleet(policy, {20, true}, 3, 42, {0, 500}, kStart);
    double rate = 1e9;
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        const Rate& own = policy.rates.rates[i];
        rate = std::min(rate, static_cast<double>(own.count) * 1e6 / static_cast<double>(own.period));
    }
    const auto gap = static_cast<Micros>(1e6 / (rate * times));
    const Micros end = fleet.now() + time;
    for (std::size_t i = 0; fleet.now() < end; i++) {
        fleet.pass(gap);
        fleet.request(i % 3, 1, false);
        if (i % 100 == 0) {
            fleet.keep(i % 3, false);
        }
    }
    fleet.pass(kSecond);
    return fleet;
}

void test_with_even_load_nearly_the_whole_limit_is_admitted(void**) {
    constexpr Micros kTime = 4 * kSecond;
    struct {
        Algorithm algorithm;
        const char* rates;
        std::uint64_t more;
    } all[] = {{Algorithm::kFixedWindow, "20000r/s", 0},    {Algorithm::kSlidingWindow, "20000r/s", 0},
               {Algorithm::kSlidingBuckets, "20000r/s", 0}, {Algorithm::kTokenBucket, "20000r/s", 0},
               {Algorithm::kLeakyBucket, "20000r/s", 4999}, {Algorithm::kGcra, "20000r/s", 1999}};
    for (const auto& one : all) {
        Policy policy;
        policy.algorithm = one.algorithm;
        policy.rates = rates_of(one.rates);
        policy.burst = one.more;
        for (const double times : {0.9, 3.0}) {
            const LeasingFleet fleet = run_evenly(policy, times, kTime);
            Client exact(policy);
            std::uint64_t possible = 0;
            const auto gap = static_cast<Micros>(1e6 / (20000 * times));
            for (Micros now = kStart; now < kStart + kTime;) {
                now += gap;
                possible += exact.request(now).allowed ? 1 : 0;
            }
            const std::uint64_t admitted = fleet.counts.leased + fleet.counts.decided;
            print_message("%s, %.1f times: %llu of %llu, %llu by leases, %llu asks\n",
                          algorithm_name(one.algorithm), times, static_cast<unsigned long long>(admitted),
                          static_cast<unsigned long long>(possible),
                          static_cast<unsigned long long>(fleet.counts.leased),
                          static_cast<unsigned long long>(fleet.counts.asks));
            assert_true(admitted * 100 >= possible * 98);
            assert_true(is_kept(policy, fleet.uses, {}));
            // Per instance and second.
            assert_true(fleet.counts.asks < 200 * 3 * 4);
        }
    }
}

// A limit of 50,000 requests a second, and one and a half times as many requests, each to a random instance.
void test_from_one_to_a_thousand_instances_nearly_the_whole_limit_is_admitted(void**) {
    Policy policy;
    policy.rates = rates_of("50000r/s");
    for (const std::size_t instances : {1, 10, 100, 1000}) {
        LeasingFleet fleet(policy, {2, true}, instances, 7, {0, 500}, kStart);
        Client exact(policy);
        std::uint64_t possible = 0;
        double due = 0;
        const Micros start = fleet.now();
        for (std::size_t i = 0; due < static_cast<double>(kSecond); i++) {
            due += 1e6 / 75'000;
            fleet.pass(std::max<Micros>(start + static_cast<Micros>(due) - fleet.now(), 0));
            fleet.request(fleet.random(instances - 1), 1, false);
            possible += exact.request(fleet.now()).allowed ? 1 : 0;
            for (std::size_t j = 0; i % 2000 == 0 && j < instances; j++) {
                fleet.keep(j, false);
            }
        }
        fleet.pass(kSecond);
        const std::uint64_t admitted = fleet.counts.leased + fleet.counts.decided;
        print_message("%zu instances: %llu of %llu, %llu by leases, %llu asks\n", instances,
                      static_cast<unsigned long long>(admitted), static_cast<unsigned long long>(possible),
                      static_cast<unsigned long long>(fleet.counts.leased),
                      static_cast<unsigned long long>(fleet.counts.asks));
        assert_true(admitted * 100 >= possible * 98);
        assert_true(is_kept(policy, fleet.uses, {}));
        assert_true(fleet.counts.asks < 200 * instances);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_no_trace_admits_more_than_the_promise),
        cmocka_unit_test(test_with_even_load_nearly_the_whole_limit_is_admitted),
        cmocka_unit_test(test_from_one_to_a_thousand_instances_nearly_the_whole_limit_is_admitted),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
