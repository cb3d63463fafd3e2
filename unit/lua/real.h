// A real server with its own clock: counts commands, and calculates when keys expire.
#pragma once

#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client.h"
#include "lua/server.h"

namespace rate_limit {

inline std::string program;  // of the server
inline std::unique_ptr<Server> server;

inline Connection& connection() { return server->connection(); }

inline long long integer(const std::vector<std::string>& command) {
    return connection().call(command)->integer;
}

// The time of Redis, in microseconds.
inline long long redis_time() {
    return integer({"EVAL", "local t = redis.call('TIME') return t[1] * 1000000 + t[2]", "0"});
}

// The value of `name` in a section of INFO.
inline std::string info(const std::string& section, const std::string& name) {
    std::istringstream text(text_of(*connection().call({"INFO", section})));
    for (std::string line; std::getline(text, line);) {
        if (line.compare(0, name.size() + 1, name + ":") == 0) {
            return line.substr(name.size() + 1);
        }
    }
    return "";
}

// How often `command` was called since CONFIG RESETSTAT.
inline long calls_of(const std::string& command) {
    const std::string stat = info("commandstats", "cmdstat_" + command);
    return stat.empty() ? 0 : std::atol(stat.c_str() + std::strlen("calls="));
}

// How many different commands were called since CONFIG RESETSTAT.
inline int commands_called() {
    std::istringstream text(text_of(*connection().call({"INFO", "commandstats"})));
    int count = 0;
    for (std::string line; std::getline(text, line);) {
        count += line.compare(0, 8, "cmdstat_") == 0 ? 1 : 0;
    }
    return count;
}

inline Micros rounded_up(Micros moment) { return (moment + 999) / 1000; }

// When the key of a client expires after its first request at `now`, in milliseconds since 1970.
inline Micros expiry_of(const Policy& policy, Micros now) {
    const Rate& rate = policy.rates.rates[0];
    const Micros end = now - now % rate.period + rate.period;
    const Micros width = rate.period / policy.buckets;
    switch (policy.algorithm) {
        case Algorithm::kFixedWindow:
            return rounded_up(policy.align_first ? now + rate.period : end);
        case Algorithm::kSlidingWindow:
            return rounded_up(end + rate.period);
        case Algorithm::kSlidingBuckets:
            return rounded_up(now - now % width + rate.period);
        case Algorithm::kSlidingLog:
            return rounded_up(now + rate.period);
        default:
            return rounded_up(now + rate.period / rate.count);
    }
}

// Policies and layouts for all forms of values.
inline std::vector<std::pair<Policy, StateLayout>> forms_of(Algorithm algorithm) {
    const Policy one = policy_of(algorithm, "100r/h");
    const Policy several = policy_of(algorithm, "100r/h,1000r/d");
    Policy interval = one;
    interval.min_interval = 1;
    // A sliding_log with room for so many entries is a ring.
    constexpr std::uint32_t kMany = 3000;
    return {{one, layout_of(one)},
            {several, layout_of(several)},
            {interval, layout_of(interval)},
            {one, layout_of(one, 4, 200)},
            {several, layout_of(several, kMaxRates, 200)},
            {one, layout_of(one, 4, kMany)},
            {interval, layout_of(interval, kMaxRates, kMany)}};
}

inline int stop_server(void**) {
    server.reset();
    return 0;
}

inline int forget_all(void**) {
    connection().call({"FLUSHALL", "SYNC"});
    return 0;
}

}  // namespace rate_limit
