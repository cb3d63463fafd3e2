// A request against one limit: decided first, then charged or refused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/algorithm_functions.h"
#include "core/decision.h"
#include "core/policy.h"
#include "core/rate_slots.h"
#include "core/state_layout.h"

namespace rate_limit {

constexpr std::size_t kMaxLimits = 16;  // that one request may be under

// A check of one client's state. Evaluate it once, then either charge or refuse; `state` must not change
// between.
class Check {
  public:
    // Decides what a request of `cost` at `now` may do, without touching `state`. A cost of 0 is a look: it
    // is always allowed and tells what is left. A null `state` is that of a client never seen. `now` is
    // after 0, which stands for never, and before kForever - kMaxPeriod. `policy` and `layout` must outlive
    // the check.
    const Decision& evaluate(const Policy& policy, const StateLayout& layout, const std::uint64_t* state,
                             Micros now, std::uint32_t cost);

    // Writes to `state` that the request was admitted.
    void charge(std::uint64_t* state) const;

    // Writes to `state` that the request was admitted elsewhere, whether it would have been here or not.
    void impose(std::uint64_t* state) const;

    // Writes to `state` what a request leaves behind that is not admitted, here or by another limit: nothing,
    // unless rejected requests count or the clock was set back. If they count, the decision's numbers change
    // accordingly.
    void refuse(std::uint64_t* state);

    // Writes to `state` that a request of the cost given to evaluate(), which was admitted shortly before,
    // was not made after all: under each rate that much less is used, or nothing. At the moment of the charge
    // this leaves the client with what it had; later it gives back the newest of what still counts.
    // min_interval remembers nothing then: whoever was admitted before that request has waited for long
    // enough. The decision of such a check means nothing.
    void give_back(std::uint64_t* state) const;

    // Where rates differ between clients: writes to `state` what it weighs, by the numbers of the decision.
    void write_weight(std::uint64_t* state) const;

    const Decision& decision() const { return decision_; }

  private:
    void evaluate_rates(const std::uint64_t* state, Micros now);
    void evaluate_interval(const std::uint64_t* state, Micros now);
    template <class Write>
    void write_states(std::uint64_t* state, Write write) const;
    void write(std::uint64_t* state, std::uint32_t cost) const;
    void move_to_rate_slots(std::uint64_t* state) const;
    void write_uncharged(std::uint64_t* state, std::uint32_t cost) const;
    void finish_charge(std::uint64_t* state) const;

    // Set by evaluate; a check is made on the stack of every request, so nothing is set before.
    const Policy* policy_;
    const StateLayout* layout_;
    Decision decision_;
    Micros now_;
    std::uint32_t cost_;
    bool interval_moved_;
    Micros admitted_at_;  // what min_interval will remember
    RateSlots rate_slots_;
    View views_[kMaxRates];
};

// Whether a policy is one rate and nothing else, as most are.
inline bool is_single(const Policy& policy, const StateLayout& layout) {
    return policy.rates.size == 1 && layout.rates == 1 && policy.min_interval == 0 && !policy.count_all &&
           !layout.varied;
}

// What a Check says of a request of `cost`, which is not 0, under such a policy, in one step: writes to
// `state` that it was admitted, or what it leaves behind if it is not.
inline void decide_single(const Policy& policy, const StateLayout& layout, std::uint64_t* state, Micros now,
                          std::uint32_t cost, Decision* decision) {
    functions_of(policy.algorithm).decide(policy, layout, state, now, cost, decision);
}

// Whether a request of `cost`, which `decision` admitted at `decided_at`, can be given back after `passed`
// microseconds without giving back more than its charge still takes. Part of a charge may have left its
// window or drained. Rejected requests that count are never given back.
bool is_refundable(const Policy& policy, std::uint32_t cost, const Decision& decision, Micros decided_at,
                   Micros passed);

// How many requests a window has counted beyond its limit, where windows follow each other without overlap:
// those of the clock for a sliding_window, too, and for sliding_buckets the sub-windows of one period of the
// clock. So no request is beyond the limit in two windows. 0 for a level and a log.
std::uint64_t window_excess(const Policy& policy, const StateLayout& layout, const std::uint64_t* state,
                            Micros now);

// How much would be forgotten with `state`: 0 for a client at its full quota, more the larger the part of its
// quota that it has used, and among equals more the longer that will matter. Where rates differ between
// clients, the state itself says what it weighs.
std::uint64_t weight_of(const Policy& policy, const StateLayout& layout, const std::uint64_t* state,
                        Micros now);

// The part of its quota that a client of this weight has used, in units that compare.
std::uint64_t used_part_of(std::uint64_t weight);

}  // namespace rate_limit
