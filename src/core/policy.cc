// What a policy promises a client.
#include "core/policy.h"

#include "core/arithmetic.h"

namespace rate_limit {

Micros window_of(const Policy& policy, const Rate& rate) {
    const std::uint64_t capacity = capacity_of(policy, rate);
    if (capacity == rate.count) {
        return rate.period;
    }
    return as_wait(divide_up(multiply(capacity, static_cast<std::uint64_t>(rate.period)), rate.count));
}

}  // namespace rate_limit
