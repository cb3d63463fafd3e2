// The log of sliding_log, for a zone whose layout changes.
#pragma once

#include <cstdint>

#include "algorithms/state_layout.h"

namespace rate_limit {

// Copies the newest entries of `from` to `to`, which is all zero, as many as there is room for.
void convert_log(const StateLayout& from_layout, const std::uint64_t* from, const StateLayout& to_layout,
                 std::uint64_t* to);

}  // namespace rate_limit
