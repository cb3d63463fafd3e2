// Decides a request by one limit, then charges or refuses it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "algorithms/algorithm_functions.h"
#include "algorithms/rate_slots.h"
#include "algorithms/state_layout.h"
#include "core/decision.h"
#include "core/policy.h"

namespace rate_limit {

constexpr std::size_t kMaxLimits = 16;  // of one request

// A request against the state of one client. Call evaluate(), then one of the functions that write; `state`
// must not change between the two.
class Check {
  public:
    // Decides a request of `cost` at `now` without a change of `state`. A request of cost 0 is always
    // allowed; its decision has the present numbers. A null `state` means an unknown client. `now` is above
    // 0, which means never, and below kForever - kMaxPeriod. `policy` and `layout` must outlive the check.
    const Decision& evaluate(const Policy& policy, const StateLayout& layout, const std::uint64_t* state,
                             Micros now, std::uint64_t cost);

    // Writes to `state` that the request was admitted.
    void charge(std::uint64_t* state) const;

    // Writes to `state` that the request was admitted elsewhere, even if it does not fit here.
    void impose(std::uint64_t* state) const;

    // Writes to `state` that the request was rejected, by this limit or another one. This changes `state`
    // only if rejected requests count or the clock was set back. If they count, the decision then has the
    // numbers after the request.
    void refuse(std::uint64_t* state);

    // Writes to `state` that an admitted request turned out to cost more, by the cost given to evaluate(),
    // even if that does not fit. A client owes at most debt_of() for each rate.
    void overdraw(std::uint64_t* state) const;

    // Lowers what each rate has used by the cost given to evaluate(), at most to 0: gives back the newest
    // requests that still count. Clears the time of min_interval. The decision of such a check has no
    // meaning.
    void give_back(std::uint64_t* state) const;

    // Undoes a part of a charge, the cost given to evaluate(), as far as the charge still counts: gives
    // nothing back to another window, and nothing that has drained. `whole` means that the request is undone,
    // so the time of min_interval is cleared: the request before is older than that. The decision of such a
    // check has no meaning.
    void undo(const Charge& charge, bool whole, std::uint64_t* state) const;

    // If rates differ between clients: writes the weight of `state`, by the numbers of the decision.
    void write_weight(std::uint64_t* state) const;

    // Writes the state as it is at the time of evaluate(), without a charge.
    void refresh(std::uint64_t* state) const { write(state, 0); }

    // The time until which the rates need `state`, after a function that writes.
    Micros needed_until(const std::uint64_t* state) const;

    // Whether `state` has slots of rates that are not among the rates of the policy.
    bool keeps_others(const std::uint64_t* state) const;

    // The time that evaluate() was given.
    Micros moment() const { return now_; }

    // The view of a rate, after evaluate().
    const View& view(std::uint32_t rate) const { return views_[rate]; }

    const Decision& decision() const { return decision_; }

  private:
    void evaluate_rates(const std::uint64_t* state, Micros now);
    void evaluate_interval(const std::uint64_t* state, Micros now);
    template <class Write>
    void write_states(std::uint64_t* state, Write write) const;
    void write(std::uint64_t* state, std::uint64_t cost) const;
    void move_to_rate_slots(std::uint64_t* state) const;
    void write_uncharged(std::uint64_t* state, std::uint64_t cost) const;
    void finish_charge(std::uint64_t* state) const;
    std::uint64_t most_owed() const;

    // Set by evaluate() and not before: each request has a check on its stack.
    const Policy* policy_;
    const StateLayout* layout_;
    Decision decision_;
    Micros now_;
    std::uint64_t cost_;
    bool interval_moved_;
    Micros admitted_at_;  // the new time for min_interval
    RateSlots rate_slots_;
    View views_[kMaxRates];
};

// Whether a policy has one rate and no option that decide_single() does not handle. Most have.
inline bool is_single(const Policy& policy, const StateLayout& layout) {
    return policy.rates.size == 1 && layout.rates == 1 && policy.min_interval == 0 && !policy.count_all &&
           !layout.varied;
}

// For such a policy and a cost above 0: does the same as Check::evaluate() and then charge() or refuse(),
// with fewer instructions.
inline void decide_single(const Policy& policy, const StateLayout& layout, std::uint64_t* state, Micros now,
                          std::uint64_t cost, Decision* decision) {
    functions_of(policy.algorithm).decide(policy, layout, state, now, cost, decision);
}

// How many requests a client has used of the rate with index `rate`, rounded up, also beyond the limit.
std::uint64_t used_of(const Policy& policy, const StateLayout& layout, const std::uint64_t* state, Micros now,
                      std::uint32_t rate);

// How many requests the present window has counted beyond its limit. Windows do not overlap, so that no
// request is counted twice: for sliding_window they are those of the clock, for sliding_buckets the
// sub-windows of one period of the clock. 0 for buckets and logs.
std::uint64_t window_excess(const Policy& policy, const StateLayout& layout, const std::uint64_t* state,
                            Micros now);

// How much would be lost with `state`: 0 for a client with its full quota. The weight grows with the used
// part of the quota, and for equal parts with the time that it will matter. If rates differ between clients,
// the state has its weight in a word.
std::uint64_t weight_of(const Policy& policy, const StateLayout& layout, const std::uint64_t* state,
                        Micros now);

// The used part of the quota in a weight, only for comparison.
std::uint64_t used_part_of(std::uint64_t weight);

}  // namespace rate_limit
