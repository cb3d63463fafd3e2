// A mark of 32 bits that differs for policies that decide differently.
#pragma once

#include <cstdint>

#include "core/policy.h"

namespace rate_limit {

constexpr std::uint64_t kMixOdd = 0x9e3779b97f4a7c15;

inline std::uint64_t mix(std::uint64_t sum, std::uint64_t word) {
    sum = (sum ^ word) * kMixOdd;
    return sum ^ (sum >> 29);
}

inline std::uint64_t policy_mark(const Policy& policy) {
    std::uint64_t mark = mix(policy.burst, policy.capacity << 7 | policy.buckets);
    mark = mix(mark, static_cast<std::uint64_t>(policy.min_interval));
    mark = mix(mark, policy.delay << 8 | static_cast<std::uint64_t>(policy.algorithm));
    mark = mix(mark, policy.ceiling << 1 | (policy.align_first ? 1U : 0U));
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        mark = mix(mark, policy.rates.rates[i].count);
        mark = mix(mark, static_cast<std::uint64_t>(policy.rates.rates[i].period));
    }
    return mark >> 32;
}

}  // namespace rate_limit
