// Time in microseconds. The caller reads the clock.
#pragma once

#include <cstdint>

#include "core/constants.h"

namespace rate_limit {

using Micros = std::int64_t;

// A wait that never ends: the cost is above the limit.
constexpr Micros kNever = -1;

}  // namespace rate_limit
