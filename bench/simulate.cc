// Simulates fleets of nginx with sync= or lease=, in virtual time, and compares them with an exact limit.
//
//   simulate [OPTION=VALUE ...]
//
// Prints CSV, a row for each run. With invalid arguments, prints the valid ones.
//
//   instances, sync_ms, lease  of the run; sync_ms is 0 with a lease
//   requests                   in all
//   admitted, exact            by the fleet; by one exact limiter of the same requests
//   over, under                how many more some clients got than by the exact one, and others fewer
//   over_percent, ...          the same in percent of `exact`
//   worst, exact_worst         the most of one client in any window of the rate's period, in limits
//   overshoot                  the value of rate_limiter_sync_overshoot_total, including the warm-up
//   calls_per_second           to Redis, of all instances
//   clients_per_call
//   beyond, beyond_percent     admitted requests that an exact limiter would have refused after those before,
//                              and their part of all; including the warm-up
//   most_early                 the most requests that the fleet admitted less than `exact` in one period
//   most_calls                 calls_per_second of the instance with the most, with a lease
//   portion                    the average size of a portion that an instance leases
//
// Calls with a lease are portions that an instance asks for, requests that ask Redis, and returns of unused
// units. nginx sends several of them in one call, which the simulation does not, and it has no deny cache.
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "simulation/arrivals.h"
#include "simulation/fleet.h"
#include "simulation/leasing_fleet.h"
#include "simulation/tally.h"

namespace rate_limit::simulation {
namespace {

Tally tally_exact(const Scenario& scenario, const std::vector<Arrival>& arrivals) {
    Exact exact(scenario);
    Tally tally(scenario);
    for (const Arrival& arrival : arrivals) {
        if (exact.admits(arrival)) {
            tally.add(arrival);
        }
    }
    return tally;
}

// What a fleet has done.
struct Outcome {
    explicit Outcome(const Scenario& scenario) : tally(scenario) {}

    Tally tally;
    std::uint64_t beyond = 0;
    double beyond_percent = 0;
    std::uint64_t overshoot = 0;
    std::uint64_t calls = 0;
    double clients_per_call = 1;
    std::uint64_t most_calls = 0;
    double portion = 0;
    std::string lease;
};

// Counts the requests that an exact limiter refuses, of those that a fleet admitted.
void count_beyond(const Scenario& scenario, const std::vector<Arrival>& admitted, Outcome* outcome) {
    Exact exact(scenario);
    outcome->beyond = static_cast<std::uint64_t>(std::count_if(
        admitted.begin(), admitted.end(), [&](const Arrival& arrival) { return !exact.admits(arrival); }));
    outcome->beyond_percent =
        100.0 * static_cast<double>(outcome->beyond) / std::max(static_cast<double>(admitted.size()), 1.0);
}

// Returns false if a table was too small.
bool run_sync(const Scenario& scenario, const std::vector<Arrival>& arrivals, Outcome* outcome) {
    Fleet fleet(scenario);
    std::vector<Arrival> admitted;
    for (const Arrival& arrival : arrivals) {
        if (fleet.admits(arrival)) {
            admitted.push_back(arrival);
            outcome->tally.add(arrival);
        }
    }
    count_beyond(scenario, admitted, outcome);
    outcome->overshoot = fleet.overshoot();
    outcome->calls = fleet.calls();
    outcome->clients_per_call =
        static_cast<double>(fleet.charges()) / std::max(static_cast<double>(fleet.calls()), 1.0);
    return fleet.evictions() == 0;
}

// What a fleet admitted, in the order of one of the two times.
std::vector<Arrival> admissions(const LeasingFleet& fleet, const Scenario& scenario, Micros Use::*time) {
    std::vector<Arrival> admitted;
    for (const Use& use : fleet.uses) {
        admitted.push_back({use.*time - scenario.start, 0, 0});
    }
    std::sort(admitted.begin(), admitted.end(),
              [](const Arrival& a, const Arrival& b) { return a.at < b.at; });
    return admitted;
}

void run_lease(const Scenario& scenario, const LeaseSize& size, const std::vector<Arrival>& arrivals,
               Outcome* outcome) {
    // Each instance looks for unused units every 100 ms, as lending/lease_keeper.h, one after the other.
    const Micros keep_every = std::max<Micros>(kSecond / 10 / scenario.instances, 1);
    const MessageTime message_time = {scenario.latency / 2, scenario.latency / 2 + scenario.jitter};
    LeasingFleet fleet(scenario.policy, size, scenario.instances, scenario.seed, message_time,
                       scenario.start);
    Micros keep_at = 0;
    std::size_t keeper = 0;
    for (const Arrival& arrival : arrivals) {
        for (; keep_at <= arrival.at; keep_at += keep_every, keeper++) {
            fleet.pass(scenario.start + keep_at - fleet.now());
            fleet.keep(keeper % scenario.instances, false);
        }
        fleet.pass(scenario.start + arrival.at - fleet.now());
        fleet.request(arrival.instance, 1, false);
    }
    fleet.pass(kSecond);
    count_beyond(scenario, admissions(fleet, scenario, &Use::time), outcome);
    for (const Arrival& arrival : admissions(fleet, scenario, &Use::came)) {
        outcome->tally.add(arrival);
    }
    outcome->calls = fleet.calls();
    outcome->most_calls = fleet.most_calls();
    outcome->portion =
        static_cast<double>(fleet.counts.asked) / std::max(static_cast<double>(fleet.counts.asks), 1.0);
    outcome->lease = std::to_string(size.amount) + (size.is_percent ? "%" : "");
}

std::size_t counted(const std::vector<Arrival>& arrivals, Micros from) {
    const auto first = std::lower_bound(arrivals.begin(), arrivals.end(), from,
                                        [](const Arrival& a, Micros time) { return a.at < time; });
    return static_cast<std::size_t>(arrivals.end() - first);
}

void print_header() {
    std::puts(
        "algorithm,instances,sync_ms,requests,admitted,exact,over,under,over_percent,under_percent,"
        "worst,exact_worst,overshoot,calls_per_second,clients_per_call,lease,beyond,"
        "beyond_percent,most_early,most_calls,portion");
}

void print_run(const Scenario& scenario, const std::vector<Arrival>& arrivals, const Tally& exact,
               const Outcome& outcome) {
    const Tally& tally = outcome.tally;
    const Difference difference(tally, exact, scenario.clients);
    const double limit = scenario.policy.rates.rates[0].count;
    const double seconds = static_cast<double>(scenario.duration) / kSecond;
    const auto percent = [&](std::uint64_t part) {
        return 100.0 * static_cast<double>(part) /
               static_cast<double>(std::max<std::uint64_t>(exact.total(), 1));
    };
    std::printf("%s,%u,%g,%zu,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.3f,%.3f,%.3f,%.3f,%" PRIu64
                ",%.2f,%.2f,%s,%" PRIu64 ",%.3f,%" PRIu64 ",%.2f,%.1f\n",
                algorithm_name(scenario.policy.algorithm), scenario.instances,
                outcome.lease.empty() ? static_cast<double>(scenario.sync) / 1000 : 0,
                counted(arrivals, scenario.warm_up), tally.total(), exact.total(), difference.over,
                difference.under, percent(difference.over), percent(difference.under),
                static_cast<double>(tally.worst_window()) / limit,
                static_cast<double>(exact.worst_window()) / limit, outcome.overshoot,
                static_cast<double>(outcome.calls) / seconds, outcome.clients_per_call, outcome.lease.c_str(),
                outcome.beyond, outcome.beyond_percent, most_under(scenario, tally, exact),
                static_cast<double>(outcome.most_calls) / seconds, outcome.portion);
    std::fflush(stdout);
}

bool write_clients(const Scenario& scenario, const Tally& fleet, const Tally& exact,
                   const std::string& name) {
    std::FILE* file = std::fopen(name.c_str(), "w");
    if (file == nullptr) {
        return false;
    }
    for (std::uint32_t i = 0; i < scenario.clients; i++) {
        std::fprintf(file, "%u %" PRIu64 " %" PRIu64 "\n", i, fleet.of(i), exact.of(i));
    }
    return std::fclose(file) == 0;
}

int fail(const std::string& what) {
    std::fprintf(stderr, "simulate: %s\n", what.c_str());
    return 1;
}

int run(const Options& options, Scenario scenario, const std::vector<Arrival>& arrivals) {
    const Tally exact = tally_exact(scenario, arrivals);
    for (const Micros sync : options.syncs) {
        scenario.sync = sync;
        Outcome outcome(scenario);
        if (!run_sync(scenario, arrivals, &outcome)) {
            return fail("a table was too small");
        }
        print_run(scenario, arrivals, exact, outcome);
        if (!options.per_client.empty() &&
            !write_clients(scenario, outcome.tally, exact, options.per_client)) {
            return fail("cannot write " + options.per_client);
        }
    }
    for (const LeaseSize& size : options.leases) {
        if (most_leased(scenario.policy, size) < 2) {
            return fail("nothing can be leased of this limit");
        }
        Outcome outcome(scenario);
        run_lease(scenario, size, arrivals, &outcome);
        print_run(scenario, arrivals, exact, outcome);
    }
    return 0;
}

int run_trace(const Options& options) {
    Scenario scenario = options.scenario;
    std::vector<Arrival> arrivals;
    if (!read_arrivals(options.trace, &arrivals, &scenario)) {
        return fail("cannot read " + options.trace);
    }
    return run(options, scenario, arrivals);
}

int run_all(const Options& options) {
    for (const std::uint32_t instances : options.instances) {
        Scenario scenario = options.scenario;
        scenario.instances = instances;
        const std::vector<Arrival> arrivals = make_arrivals(scenario);
        if (!options.write_trace.empty()) {
            return write_arrivals(arrivals, options.write_trace)
                       ? 0
                       : fail("cannot write " + options.write_trace);
        }
        if (const int status = run(options, scenario, arrivals)) {
            return status;
        }
    }
    return 0;
}

}  // namespace
}  // namespace rate_limit::simulation

int main(int count, char** words) {
    using namespace rate_limit::simulation;
    Options options;
    const std::string wrong = parse_options({words + 1, words + count}, &options);
    if (!wrong.empty()) {
        std::fprintf(stderr, "simulate: %s\n%s", wrong.c_str(), kUsage);
        return 2;
    }
    if (options.header && options.write_trace.empty()) {
        print_header();
    }
    return options.trace.empty() ? run_all(options) : run_trace(options);
}
