// What every algorithm has in common: how it sees a client at a moment, and what it says of a request.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/arithmetic.h"
#include "core/policy.h"
#include "core/state_layout.h"

namespace rate_limit {

// State at a moment, unpacked. The algorithms give `start`, `a` and `b` their meanings.
struct View {
    Micros now;  // the moment, never before the state's own last moment
    Micros start;
    std::uint64_t a;
    std::uint64_t b;
    bool moved;  // the clock or the rate changed under the state: it is written even if nothing is charged
};

// What one rate says of a request. If it fits, the numbers are those after it has been charged.
struct Outcome {
    bool fits = false;
    std::uint32_t remaining = 0;
    Micros reset_after = 0;          // until the whole quota is back
    Micros retry_after = 0;          // until the request would fit; kNever; 0 if it fits
    Micros delay = 0;                // leaky_bucket: until the request's turn
    std::uint64_t excess_milli = 0;  // if it does not fit or is delayed: 1/1000 requests that are too many
};

// One rate of a policy and where its state is.
struct Quota {
    const Policy& policy;
    const StateLayout& layout;
    const Rate& rate;
    std::uint64_t limit;   // capacity_of(policy, rate)
    std::uint64_t period;  // of the rate, microseconds
};

// Windows keep a mark of the period that they were made for beside their end, which needs 52 bits: a window
// that lies ahead is either left by a longer period, or by a clock that has been set back.
constexpr unsigned kWindowBits = 52;

inline Micros window_end_of(std::uint64_t word) {
    return static_cast<Micros>(word & ((std::uint64_t{1} << kWindowBits) - 1));
}

inline std::uint64_t period_mark(const Rate& rate) {
    const std::uint64_t seconds = static_cast<std::uint64_t>(rate.period) / kSecond;
    return seconds < kPeriodMarks ? seconds : seconds % kPeriodMarks;
}

inline bool has_period(std::uint64_t word, const Rate& rate) {
    return word >> kWindowBits == period_mark(rate);
}

inline std::uint64_t pack_window(Micros end, const Rate& rate) {
    return static_cast<std::uint64_t>(end) | (period_mark(rate) << kWindowBits);
}

inline std::uint32_t saturating_add(std::uint64_t count, std::uint64_t cost) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(count + cost, kMaxCounter));
}

// The moment at which to judge state that last changed at `last`: `now`, or `last` while the clock catches up
// with it. Sets `view->moved` if the clock was set back, and the state has to follow.
inline void set_moment(Micros last, Micros now, View* view) {
    view->moved = last - now > kClockSlack;
    view->now = view->moved ? now : std::max(now, last);
}

template <class Holds>
bool for_all_rates(const Policy& policy, Holds holds) {
    return std::all_of(policy.rates.rates, policy.rates.rates + policy.rates.size, holds);
}

}  // namespace rate_limit
