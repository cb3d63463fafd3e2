// Time as the limits see it: microseconds of some clock that the caller reads.
#pragma once

#include <cstdint>

#include "core/constants.h"

namespace rate_limit {

using Micros = std::int64_t;

// What "never" looks like where a wait is expected: the cost cannot fit, however long the client waits.
constexpr Micros kNever = -1;

}  // namespace rate_limit
