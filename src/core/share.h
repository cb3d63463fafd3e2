// One instance's part of a limit that several share without asking each other.
#pragma once

#include <cstdint>

#include "core/policy.h"

namespace rate_limit {

struct Share {
    std::uint32_t instances = 1;  // that there are
    std::uint32_t rank = 0;       // of this one among them, from 0
};

// The part of a number of requests that is one instance's: those of all add up to the whole.
std::uint32_t part_of(std::uint32_t count, const Share& share);

// The part of a policy that is one instance's: those of all add up to the whole. Where there are fewer
// requests than instances, each admits one in a longer time.
Policy part_of(const Policy& policy, const Share& share);

}  // namespace rate_limit
