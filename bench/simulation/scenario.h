// The parameters of a simulation: a limit, a fleet of nginx instances that count locally with sync= or lease
// with lease=, and clients.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/policy.h"
#include "lease/terms.h"

namespace rate_limit::simulation {

struct Scenario {
    Policy policy;
    std::uint32_t instances = 3;
    Micros sync = kSecond / 10;
    std::vector<Micros>
        phases;  // time of each instance's first round since the start; missing ones are drawn

    // The network between an instance and Redis. A lost call times out after `timeout`, and is repeated in
    // the next round.
    Micros latency = 500;  // round trip
    Micros jitter = 0;     // maximum of the random delay in each direction
    double loss = 0;       // share of lost calls, and of lost answers: 0 to 1
    Micros timeout = 20'000;

    // The clients.
    std::uint32_t clients = 20;
    double zipf = 1;      // exponent: client k sends 1/k^zipf as often as the first
    double load = 2;      // load of an average client, in units of its limit
    double requests = 0;  // of all clients that are not floods, instead of `load`; 0: by the load
    Micros on = 0;        // mean duration of activity and of pauses; 0: no pauses
    Micros off = 0;
    double tail = 0;   // of these durations: shape of a Pareto distribution; 0: exponential
    double swing = 0;  // amplitude of the daily variation, 0 to 1
    Micros day = 24 * 3600 * kSecond;
    std::uint32_t floods = 0;  // the last clients, which send steadily, but only for a while
    double flood = 10;         // rate of a flood, in units of the limit
    bool sticky = false;       // all requests of a client go to one instance
    double uneven = 0;         // exponent: instance k receives 1/k^uneven as much as the first; 0: all alike
    Micros turn = 0;           // instances receive all requests in turn, each for this time; 0: not in turn

    Micros duration = 600 * kSecond;
    Micros warm_up = 0;  // excluded from the totals
    Micros start = 1'700'000'000 * kSecond;
    std::uint64_t seed = 1;
};

// The options of the command line: a run for each number of instances and each sync=, then each lease=.
struct Options {
    Scenario scenario;
    std::vector<std::uint32_t> instances = {3};
    std::vector<Micros> syncs = {kSecond / 10};
    std::vector<LeaseSize> leases;
    std::string trace;        // file of arrivals to read instead of drawing them
    std::string write_trace;  // file for the arrivals; nothing is simulated
    std::string per_client;   // output file: admitted requests of each client in the last run
    bool header = true;
};

// Parses words like sync=10ms,1s. Returns an error message, or an empty text.
std::string parse_options(const std::vector<std::string_view>& words, Options* options);

// The options of parse_options, one per line.
extern const char kUsage[];

}  // namespace rate_limit::simulation
