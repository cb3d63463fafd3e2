// Sizes and ends of leased portions.
#include "lease/terms.h"

#include <algorithm>

#include "core/arithmetic.h"

namespace rate_limit {
namespace {

// A bucket that refills faster than this overflows between two calls.
constexpr Micros kShortestBurst = 2 * kLeaseHorizon;

// What a rate refills in a time.
std::uint64_t refill(const Rate& rate, Micros time) {
    return divide(multiply(rate.count, static_cast<std::uint64_t>(time)),
                  static_cast<std::uint64_t>(rate.period))
        .value;
}

bool has_one_capacity(const Policy& policy) {
    const RateList& rates = policy.rates;
    return std::all_of(rates.rates, rates.rates + rates.size, [&](const Rate& rate) {
        return capacity_of(policy, rate) == capacity_of(policy, rates.rates[0]);
    });
}

// The length of the windows in which a rate counts.
Micros window_of_rate(const Policy& policy, const Rate& rate) {
    if (!has_state<StateKind::kRing>(policy.algorithm)) {
        return rate.period;
    }
    const Micros buckets = policy.buckets;
    return (rate.period + buckets - 1) / buckets;
}

// What a decision adds to the end of the window to tell when the whole quota is back.
Micros beyond_window(const Policy& policy, const Rate& rate) {
    if (has_state<StateKind::kCounts>(policy.algorithm)) {
        return rate.period;
    }
    if (has_state<StateKind::kRing>(policy.algorithm)) {
        return window_of_rate(policy, rate) * (policy.buckets - 1);
    }
    return 0;
}

}  // namespace

const char* lease_objection(const Policy& policy) {
    if (has_state<StateKind::kLog>(policy.algorithm)) {
        return "sliding_log needs the time of every request";
    }
    if (policy.min_interval != 0) {
        return "min_interval= needs the time of the last request";
    }
    if (policy.count_all) {
        return "count=all counts each rejected request in Redis";
    }
    if (is_bucket(policy.algorithm) && !has_one_capacity(policy)) {
        return "several rates of token_bucket need one capacity=";
    }
    if (policy.align_first && policy.rates.size > 1) {
        return "with align=first, the windows of several rates end at different times";
    }
    return nullptr;
}

std::uint64_t most_leased(const Policy& policy, const LeaseSize& size) {
    std::uint64_t most = kMaxCount;
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        const Rate& rate = policy.rates.rates[i];
        const std::uint64_t limit = capacity_of(policy, rate);
        most =
            std::min(most, size.is_percent ? divide(multiply(limit, size.amount), 100).value : size.amount);
        most = std::min(most, limit);
        if (is_bucket(policy.algorithm)) {
            most = std::min({most, limit / 2, refill(rate, 2 * kLeaseHorizon)});
            most = refill(rate, kShortestBurst) > limit ? 0 : most;
        }
    }
    return lease_objection(policy) == nullptr ? most : 0;
}

LeaseHolding holding_of(const Policy& policy, const Decision& decision, Micros time) {
    if (is_bucket(policy.algorithm)) {
        // The reported time is rounded up to a microsecond.
        const Micros drains = std::max<Micros>(decision.reset_after - 1, 0);
        return {0, std::min(drains, kLeaseIdle), drains};
    }
    const Rate& reported = policy.rates.rates[decision.rate];
    Micros end = time + decision.reset_after - beyond_window(policy, reported);
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        if (i != decision.rate) {
            end = std::min(end, window_end(time, window_of_rate(policy, policy.rates.rates[i])));
        }
    }
    return {end, std::max<Micros>(end - time, 0), 0};
}

}  // namespace rate_limit
