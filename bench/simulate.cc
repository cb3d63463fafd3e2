// Simulates fleets of nginx with sync=, in virtual time, and compares them with an exact limit.
//
//   simulate [OPTION=VALUE ...]
//
// Prints CSV, a row for each run. With invalid arguments, prints the valid ones.
//
//   instances, sync_ms         of the run
//   requests                   in all
//   admitted, exact            by the fleet; by one exact limiter of the same requests
//   over, under                how many more some clients got than by the exact one, and others fewer
//   over_percent, ...          the same in percent of `exact`
//   worst, exact_worst         the most of one client in any window of the rate's period, in limits
//   overshoot                  the value of rate_limiter_sync_overshoot_total, including the warm-up
//   calls_per_second           to Redis, of all instances
//   clients_per_call
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "simulation/arrivals.h"
#include "simulation/fleet.h"
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

Tally tally_fleet(const Scenario& scenario, const std::vector<Arrival>& arrivals, Fleet* fleet) {
    Tally tally(scenario);
    for (const Arrival& arrival : arrivals) {
        if (fleet->admits(arrival)) {
            tally.add(arrival);
        }
    }
    return tally;
}

std::size_t counted(const std::vector<Arrival>& arrivals, Micros from) {
    const auto first = std::lower_bound(arrivals.begin(), arrivals.end(), from,
                                        [](const Arrival& a, Micros time) { return a.at < time; });
    return static_cast<std::size_t>(arrivals.end() - first);
}

void print_header() {
    std::puts(
        "algorithm,instances,sync_ms,requests,admitted,exact,over,under,over_percent,under_percent,"
        "worst,exact_worst,overshoot,calls_per_second,clients_per_call");
}

void print_run(const Scenario& scenario, const std::vector<Arrival>& arrivals, const Tally& exact,
               const Fleet& fleet, const Tally& tally) {
    const Difference difference(tally, exact, scenario.clients);
    const double limit = scenario.policy.rates.rates[0].count;
    const auto percent = [&](std::uint64_t part) {
        return 100.0 * static_cast<double>(part) /
               static_cast<double>(std::max<std::uint64_t>(exact.total(), 1));
    };
    const auto calls = static_cast<double>(fleet.calls());
    std::printf("%s,%u,%g,%zu,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.3f,%.3f,%.3f,%.3f,%" PRIu64
                ",%.2f,%.2f\n",
                algorithm_name(scenario.policy.algorithm), scenario.instances,
                static_cast<double>(scenario.sync) / 1000, counted(arrivals, scenario.warm_up), tally.total(),
                exact.total(), difference.over, difference.under, percent(difference.over),
                percent(difference.under), static_cast<double>(tally.worst_window()) / limit,
                static_cast<double>(exact.worst_window()) / limit, fleet.overshoot(),
                calls / (static_cast<double>(scenario.duration) / kSecond),
                static_cast<double>(fleet.charges()) / std::max(calls, 1.0));
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
        Fleet fleet(scenario);
        const Tally tally = tally_fleet(scenario, arrivals, &fleet);
        if (fleet.evictions() != 0) {
            return fail("a table was too small");
        }
        print_run(scenario, arrivals, exact, fleet, tally);
        if (!options.per_client.empty() && !write_clients(scenario, tally, exact, options.per_client)) {
            return fail("cannot write " + options.per_client);
        }
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
