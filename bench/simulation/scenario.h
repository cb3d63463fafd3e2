// What is simulated: a limit, a fleet of nginx instances that count locally with sync=, and their clients.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/policy.h"

namespace rate_limit::simulation {

struct Scenario {
    Policy policy;
    std::uint32_t instances = 3;
    Micros sync = kSecond / 10;
    std::vector<Micros>
        phases;  // when each instance has a round, since the start; those that are missing are drawn

    // Between an instance and Redis. What is lost is missed after `timeout` and sent again in the next round.
    Micros latency = 500;  // there and back
    Micros jitter = 0;     // at most so much longer, each way
    double loss = 0;       // of calls, and of the answers to those that arrive: 0 to 1
    Micros timeout = 20'000;

    // The clients.
    std::uint32_t clients = 20;
    double zipf = 1;      // exponent: client k sends 1/k^zipf as often as the first
    double load = 2;      // offered by an average client, in units of its limit
    double requests = 0;  // of all of them together, that are no flood, instead of that load; 0: by the load
    Micros on = 0;        // how long clients send at a time, on average, and then pause; 0: they never pause
    Micros off = 0;
    double tail = 0;   // of those times: the layout of a Pareto distribution; 0: they are exponential
    double swing = 0;  // how far busy and quiet times of a day are from its mean, 0 to 1
    Micros day = 24 * 3600 * kSecond;
    std::uint32_t floods = 0;  // so many of the clients, the last, send steadily, but only for a while
    double flood = 10;         // how much, in units of the limit
    bool sticky = false;       // all requests of a client go to one instance

    Micros duration = 600 * kSecond;
    Micros warm_up = 0;  // so much of it is not in the totals
    Micros start = 1'700'000'000 * kSecond;
    std::uint64_t seed = 1;
};

// What the command line asks for: a run for each number of instances and each time of sync=.
struct Options {
    Scenario scenario;
    std::vector<std::uint32_t> instances = {3};
    std::vector<Micros> syncs = {kSecond / 10};
    std::string trace;        // file of arrivals to read instead of making some
    std::string write_trace;  // file for the arrivals; nothing is simulated
    std::string per_client;   // file for what each client was admitted in the last run
    bool header = true;
};

// Reads words like sync=10ms,1s. Returns what is wrong, or an empty text.
std::string parse_options(const std::vector<std::string_view>& words, Options* options);

// What parse_options accepts, a line each.
extern const char kUsage[];

}  // namespace rate_limit::simulation
