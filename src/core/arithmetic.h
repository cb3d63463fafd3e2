// Exact integer arithmetic on products that do not fit 64 bits.
#pragma once

#include <cstdint>

#include "core/time.h"

namespace rate_limit {

__extension__ using Wide = unsigned __int128;

// Levels are counted in units of 1/period of a request: each microsecond drains `count` of these units. In
// these units every level is an integer, so nothing is rounded.
inline Wide multiply(std::uint64_t a, std::uint64_t b) { return static_cast<Wide>(a) * b; }

struct Quotient {
    std::uint64_t value;
    std::uint64_t rest;
};

inline Quotient divide(Wide dividend, std::uint64_t divisor) {
    if (static_cast<std::uint64_t>(dividend >> 64) == 0) {
        const auto narrow = static_cast<std::uint64_t>(dividend);
        return {narrow / divisor, narrow % divisor};
    }
    const Wide value = dividend / divisor;
    const Wide most = ~std::uint64_t{0};
    return {static_cast<std::uint64_t>(value < most ? value : most),
            static_cast<std::uint64_t>(dividend % divisor)};
}

inline std::uint64_t divide_up(Wide dividend, std::uint64_t divisor) {
    const Quotient q = divide(dividend, divisor);
    return q.value + (q.rest != 0 && q.value != ~std::uint64_t{0} ? 1 : 0);
}

inline Micros as_wait(std::uint64_t micros) {
    return micros < static_cast<std::uint64_t>(kForever) ? static_cast<Micros>(micros) : kForever;
}

// The first multiple of `period` after `now`.
inline Micros window_end(Micros now, Micros period) { return now - now % period + period; }

}  // namespace rate_limit
