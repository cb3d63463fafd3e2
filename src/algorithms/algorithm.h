// What all algorithms share: the view of a state at a moment, the outcome of a request, and windows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "algorithms/state_layout.h"
#include "core/arithmetic.h"
#include "core/policy.h"

namespace rate_limit {

// A state at a moment, unpacked. Each algorithm defines what `start`, `a` and `b` mean.
struct View {
    Micros now;  // the moment; not before the last change of the state
    Micros start;
    std::uint64_t a;
    std::uint64_t b;
    bool moved;  // the clock was set back or the period changed: write the state even if nothing is charged
};

// What one rate decides on a request. If the request fits, the numbers are those after its charge.
struct Outcome {
    bool fits = false;
    std::uint64_t remaining = 0;
    Micros reset_after = 0;          // until the whole quota is back
    Micros retry_after = 0;          // until the request would fit; kNever; 0 if it fits
    Micros delay = 0;                // leaky_bucket: how long the request is delayed
    std::uint64_t excess_milli = 0;  // if it does not fit or is delayed: 1/1000 requests above the limit
};

// One rate of a policy, and the layout of its state.
struct Quota {
    const Policy& policy;
    const StateLayout& layout;
    const Rate& rate;
    std::uint64_t limit;   // capacity_of(policy, rate)
    std::uint64_t period;  // of the rate, microseconds
};

// `rate` is the index of the rate.
inline Quota quota_of(const Policy& policy, const StateLayout& layout, std::uint32_t rate) {
    const Rate& r = policy.rates.rates[rate];
    return {policy, layout, r, capacity_of(policy, r), static_cast<std::uint64_t>(r.period)};
}

// The word of a window has its end in 52 bits and a mark of its period above. The mark tells why a window
// lies in the future: its period was longer, or the clock was set back.
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

// Where a counter of a window saturates.
inline std::uint64_t max_counter(const StateLayout& layout) {
    return layout.large ? kMaxCount : kMaxSmallCounter;
}

inline std::uint64_t saturating_add(const StateLayout& layout, std::uint64_t count, std::uint64_t cost) {
    return std::min(count + cost, max_counter(layout));
}

// `count` plus `cost`, but no more than `most`, unless `count` is more already.
inline std::uint64_t add_up_to(std::uint64_t count, std::uint64_t cost, std::uint64_t most) {
    return std::max(count, std::min(count + cost, most));
}

// Requests in units of 1/1000 request. An excess saturates at kMaxCount of these units.
inline std::uint64_t excess_milli(std::uint64_t requests) {
    return requests <= kMaxCount / 1000 ? requests * 1000 : kMaxCount;
}

// Sets `view->now` for a state that last changed at `last`: `now`, or `last` while the clock is behind by at
// most kClockSlack. Sets `view->moved` if the clock is further behind: it was set back, and the state follows
// it.
inline void set_moment(Micros last, Micros now, View* view) {
    view->moved = last - now > kClockSlack;
    view->now = view->moved ? now : std::max(now, last);
}

}  // namespace rate_limit
