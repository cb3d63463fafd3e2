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
    double zipf = 1;  // exponent: client k sends 1/k^zipf as often as the first
    double load = 2;  // offered by an average client, in units of its limit
    Micros on = 0;    // how long clients send at a time, on average, and then pause; 0: they never pause
    Micros off = 0;
    bool sticky = false;  // all requests of a client go to one instance

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
