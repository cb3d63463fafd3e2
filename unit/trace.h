// Random policies and random traces of requests against them, for RapidCheck.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <iosfwd>
#include <utility>
#include <vector>

#include "client.h"
#include "core/policy.h"

namespace rate_limit {

struct Step {
    Micros move;         // what the clock shows more than at the step before; less than 0 if it was set back
    std::uint64_t cost;  // 0 for a look
    RateList rates;      // in force from this step on; none for no change
};

struct Trace {
    Policy policy;
    Micros start;
    std::vector<Step> steps;
};

// What a trace may hold besides requests on a clock that moves forward.
enum TraceKind : unsigned {
    kPlain = 0,
    kStepsBack = 1,
    kRateChanges = 2,
    kSeveralRates = 4,
    kIntervals = 8,
    kCountAll = 16,
};

// The latest time of a trace: state holds it, and the ends of its windows.
constexpr Micros kTraceEnd = kForever - 4 * kMaxPeriod;

// The clock after a step. Time 0 stands for "never".
inline Micros moved(Micros now, Micros move) { return std::clamp<Micros>(now + move, 1, kTraceEnd); }

std::ostream& operator<<(std::ostream& out, const RateList& list);
std::ostream& operator<<(std::ostream& out, const Policy& policy);
std::ostream& operator<<(std::ostream& out, const Trace& trace);

namespace random {

// RapidCheck's own range grows with the size of a test; this one is always whole. Both ends are included.
template <typename T>
rc::Gen<T> between(T least, T most) {
    return rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(least, most + 1));
}

template <typename T>
rc::Gen<T> one_of(std::vector<T> values) {
    return rc::gen::elementOf(std::move(values));
}

rc::Gen<std::uint64_t> any_count(Algorithm algorithm);
RateList draw_rates(Algorithm algorithm, bool several);
Policy draw_policy(Algorithm algorithm, unsigned kind);

// A move that matters to `rate`: between two of its requests, within its window, around its end, or far
// beyond.
rc::Gen<Micros> any_move(const Rate& rate, bool back);

rc::Gen<std::uint64_t> any_cost(std::uint64_t limit);

}  // namespace random

// Traces of any `kind`, or of several with their bits or-ed, against policies of one algorithm. Some start on
// the edge of a window.
rc::Gen<Trace> any_trace(Algorithm algorithm, unsigned kind);

}  // namespace rate_limit
