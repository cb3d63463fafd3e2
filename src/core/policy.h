// What a limit is: the algorithm, its rates and its options.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/algorithm_table.h"
#include "core/constants.h"
#include "core/rate.h"

namespace rate_limit {

constexpr std::uint64_t kMaxCost = kMaxCount;
constexpr std::uint64_t kMaxBurst = kMaxCount - 1;
constexpr std::uint32_t kMinBuckets = 2;
constexpr std::uint32_t kMaxBuckets = 120;
constexpr std::uint64_t kOneMore = ~std::uint64_t{0};  // an overdraft of the limit once more

struct Policy {
    Algorithm algorithm = Algorithm::kSlidingWindow;
    bool align_first = false;  // fixed_window: windows start with a client's first request, not on the clock
    bool count_all = false;    // rejected requests count too
    bool debt = false;         // requests that others admitted beyond the limit count, up to one more quota
    std::uint64_t overdraft = 0;     // settle=: most that a client may owe beyond the limit; may be kOneMore
    std::uint64_t burst = 0;         // leaky_bucket, gcra: requests beyond the first that may come at once
    std::uint64_t ceiling = 0;       // leaky_bucket, gcra: largest limit of all policies of the zone
    std::uint64_t capacity = 0;      // token_bucket: tokens; 0 for the rate's count
    std::uint32_t buckets = 10;      // sliding_buckets: sub-windows
    std::uint64_t delay = kNoDelay;  // leaky_bucket: requests of the burst that are not delayed
    Micros min_interval = 0;         // least time between two admitted requests; 0 for none
    RateList rates = {};
};

// The most requests that `policy` admits at once under `rate`: the limit in headers.
inline std::uint64_t capacity_of(const Policy& policy, const Rate& rate) {
    if (takes<kTakesBurst>(policy.algorithm)) {
        return policy.burst + 1;
    }
    if (takes<kTakesCapacity>(policy.algorithm) && policy.capacity != 0) {
        return policy.capacity;
    }
    return rate.count;
}

// The most that a client may owe beyond the limit of `rate`: what other instances admitted (sync=), or what
// requests turned out to cost (settle=).
inline std::uint64_t debt_of(const Policy& policy, const Rate& rate) {
    const std::uint64_t limit = capacity_of(policy, rate);
    const std::uint64_t shared = policy.debt ? std::max(limit, rate.count) : 0;
    return std::max(shared, policy.overdraft == kOneMore ? limit : policy.overdraft);
}

// The most that a client may have used under `rate`, with what it owes.
inline std::uint64_t most_used(const Policy& policy, const Rate& rate) {
    const std::uint64_t limit = capacity_of(policy, rate);
    return limit + std::min(debt_of(policy, rate), kMaxCount - limit);
}

// How long capacity_of() requests last at `rate`.
Micros window_of(const Policy& policy, const Rate& rate);

}  // namespace rate_limit
