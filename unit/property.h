// Runs a property over random traces of every algorithm, inside a cmocka test.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "test.h"
#include "trace.h"

namespace rate_limit {

// RapidCheck prints the seed and the least failing trace; RC_PARAMS in the environment repeats or prolongs a
// run.
void for_every_algorithm(const char* promise, unsigned kind,
                         const std::function<void(const Trace&)>& property);

// An admitted request.
struct Admission {
    Micros time;
    std::uint64_t cost;
};

// The most that was admitted in any window (t - length, t].
std::uint64_t most_within(const std::vector<Admission>& all, Micros length);

// Whether no window holds more than `policy` promises with its one rate.
bool within_bound(const Policy& policy, const std::vector<Admission>& all);

// The longest that a client waits which has just used up the quota of `rate`.
Micros longest_wait(const Policy& policy, const Rate& rate);

}  // namespace rate_limit
