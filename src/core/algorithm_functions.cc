// What several algorithms share.
#include "core/algorithm_functions.h"

namespace rate_limit {

bool is_in_same_window(const Charge& charge, Micros left) {
    const Policy& policy = charge.policy;
    if (policy.rates.size == 1) {
        return charge.passed < left;
    }
    // The decision has the numbers of one rate only. The clock tells the windows of all rates, except those
    // that start with the client: of these, few end within 1/100 of their period.
    constexpr Micros kPart = 100;
    return for_all_rates(policy, [&](const Rate& rate) {
        return policy.align_first
                   ? charge.passed * kPart < rate.period
                   : charge.decided_at / rate.period == (charge.decided_at + charge.passed) / rate.period;
    });
}

}  // namespace rate_limit
