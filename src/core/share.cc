// Divides the numbers of a policy.
#include "core/share.h"

#include <algorithm>

#include "core/arithmetic.h"

namespace rate_limit {
namespace {

Rate part(const Rate& rate, const Share& share) {
    if (rate.count >= share.instances) {
        return {part_of(rate.count, share), rate.period};
    }
    constexpr std::uint64_t kMostSeconds = kMaxPeriod / kSecond;
    const std::uint64_t seconds =
        divide_up(multiply(static_cast<std::uint64_t>(rate.period / kSecond), share.instances), rate.count);
    return {1, static_cast<Micros>(std::min(seconds, kMostSeconds)) * kSecond};
}

}  // namespace

std::uint64_t part_of(std::uint64_t count, const Share& share) {
    return count / share.instances + (share.rank < count % share.instances ? 1 : 0);
}

Policy part_of(const Policy& policy, const Share& share) {
    Policy result = policy;
    if (share.instances <= 1) {
        return result;
    }
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        result.rates.rates[i] = part(policy.rates.rates[i], share);
    }
    // The limit is burst + 1; each instance keeps the 1.
    result.burst = part_of(policy.burst, share);
    if (policy.capacity != 0) {
        result.capacity = std::max<std::uint64_t>(part_of(policy.capacity, share), 1);
    }
    if (policy.delay != kNoDelay) {
        result.delay = part_of(policy.delay, share);
    }
    return result;
}

}  // namespace rate_limit
