// The part of a limit that belongs to one instance while Redis is down.
#pragma once

#include <cstdint>

#include "core/policy.h"

namespace rate_limit {

struct Share {
    std::uint32_t instances = 1;  // number of instances
    std::uint32_t rank = 0;       // of this instance, from 0
};

// The part of `count` requests for one instance. The parts of all instances add up to `count`.
std::uint64_t part_of(std::uint64_t count, const Share& share);

// The part of a policy for one instance. The parts of all instances add up to the policy. If a rate has fewer
// requests than there are instances, each instance admits one request in a longer period.
Policy part_of(const Policy& policy, const Share& share);

}  // namespace rate_limit
