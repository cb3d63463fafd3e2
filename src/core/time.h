// Time as the limits see it: microseconds of some clock that the caller reads.
#pragma once

#include <cstdint>

namespace rate_limit {

using Micros = std::int64_t;

constexpr Micros kSecond = 1'000'000;

// No wait is reported as longer than this (142 years); it also bounds every stored time to 52 bits.
constexpr Micros kForever = (Micros{1} << 52) - 1;

// What "never" looks like where a wait is expected: the cost cannot fit, however long the client waits.
constexpr Micros kNever = -1;

// A worker may be put to sleep between reading the clock and using what it read. A clock behind the state by
// no more than this stands still until it has caught up; one further behind has been set back, and the state
// follows it.
constexpr Micros kClockSlack = kSecond;

}  // namespace rate_limit
