// Decides over all rates of a limit.
#include "algorithms/check.h"

#include <algorithm>

namespace rate_limit {
namespace {

bool longer(Micros a, Micros b) { return b != kNever && (a == kNever || a > b); }

// The state of an unknown client. No algorithm reads more words of a state that is all zero.
constexpr std::uint64_t kUnseen[2 + kMaxBuckets] = {};

// The slots of a policy's rates; all 0 if there is one slot.
RateSlots rate_slots_of(const Policy& policy, const StateLayout& layout, const std::uint64_t* state) {
    return has_marks(layout)
               ? find_rate_slots(policy.rates, layout, state != nullptr ? state[marks_index(layout)] : 0)
               : RateSlots();
}

const std::uint64_t* words_at(const StateLayout& layout, std::uint8_t slot, const std::uint64_t* state) {
    return state == nullptr ? kUnseen : state + slot * words_per_rate(layout);
}

// A weight has the used part of a quota in its high bits, and how long it will matter in the kTimeBits below.
constexpr unsigned kTimeBits = 40;
constexpr std::uint64_t kLongest =
    (std::uint64_t{1} << kTimeBits) - 1;  // microseconds, or seconds since 1970

std::uint64_t used_part(std::uint64_t limit, std::uint64_t remaining) {
    constexpr unsigned kBits = 64 - kTimeBits;
    constexpr std::uint64_t kFull = (std::uint64_t{1} << kBits) - 2;
    if (remaining >= limit) {
        return 0;
    }
    // The product of a large number would not fit 64 bits.
    const unsigned shift = limit >> (64 - kBits) != 0 ? kBits : 0;
    return 1 + ((limit - remaining) >> shift) * kFull / (limit >> shift);
}

std::uint64_t weight(std::uint64_t used, Micros matters) {
    return used == 0 ? 0 : (used << kTimeBits) | std::min(static_cast<std::uint64_t>(matters), kLongest);
}

}  // namespace

const Decision& Check::evaluate(const Policy& policy, const StateLayout& layout, const std::uint64_t* state,
                                Micros now, std::uint64_t cost) {
    policy_ = &policy;
    layout_ = &layout;
    now_ = now;
    cost_ = cost;
    decision_ = {};
    decision_.allowed = true;
    rate_slots_ = rate_slots_of(policy, layout, state);
    evaluate_rates(state, now);
    interval_moved_ = false;
    if (policy.min_interval != 0) {
        evaluate_interval(state, now);
    }
    return decision_;
}

void Check::evaluate_rates(const std::uint64_t* state, Micros now) {
    Micros delay = 0;
    std::uint64_t delayed_excess = 0;
    const auto evaluate = functions_of(policy_->algorithm).evaluate;
    for (std::uint32_t i = 0; i < policy_->rates.size; i++) {
        const Quota q = quota_of(*policy_, *layout_, i);
        Outcome out = evaluate(q, words_at(*layout_, rate_slots_.from[i], state), now, cost_, &views_[i]);
        if (cost_ == 0) {
            out.fits = true;
            out.retry_after = 0;
        }
        if (out.delay > delay) {
            delay = out.delay;
            delayed_excess = out.excess_milli;
        }
        const Micros behind = views_[i].now - now;
        out.reset_after += out.reset_after != 0 ? behind : 0;
        out.retry_after += out.retry_after > 0 ? behind : 0;
        const bool binds =
            i == 0 || (out.fits ? decision_.allowed && out.remaining < decision_.remaining
                                : decision_.allowed || longer(out.retry_after, decision_.retry_after));
        if (!binds) {
            continue;
        }
        decision_.allowed = out.fits;
        decision_.rate = static_cast<std::uint8_t>(i);
        decision_.limit = q.limit;
        decision_.remaining = out.remaining;
        decision_.reset_after = out.reset_after;
        decision_.retry_after = out.retry_after;
        decision_.excess_milli = out.excess_milli;
    }
    if (decision_.allowed) {
        decision_.delay = delay;
        decision_.excess_milli = delayed_excess;
    }
}

void Check::evaluate_interval(const std::uint64_t* state, Micros now) {
    const auto last = state == nullptr ? 0 : static_cast<Micros>(state[interval_index(*layout_)]);
    View view = {};
    set_moment(last, now, &view);
    interval_moved_ = view.moved;
    admitted_at_ = view.now;
    const Micros next = (view.moved ? now : last) + policy_->min_interval;
    if (cost_ == 0 || last == 0 || next <= now) {
        return;
    }
    if (decision_.allowed) {
        // Nothing will be charged, so the numbers are those without the request.
        const std::uint64_t cost = cost_;
        cost_ = 0;
        evaluate_rates(state, now);
        cost_ = cost;
    }
    if (decision_.allowed || longer(next - now, decision_.retry_after)) {
        decision_.retry_after = next - now;
        decision_.reset_after = std::max(decision_.reset_after, next - now);
        decision_.excess_milli = excess_milli(cost_);
    }
    decision_.allowed = false;
    decision_.remaining = 0;
    decision_.delay = 0;
}

// Each state is written by its rate. All rates of a log share one state, which the first rate writes.
template <class Write>
void Check::write_states(std::uint64_t* state, Write write) const {
    move_to_rate_slots(state);
    const std::size_t words = words_per_rate(*layout_);
    const std::uint32_t states = std::min(policy_->rates.size, layout_->rates);
    for (std::uint32_t i = 0; i < states; i++) {
        write(quota_of(*policy_, *layout_, i), views_[i], state + rate_slots_.to[i] * words);
    }
}

void Check::write(std::uint64_t* state, std::uint64_t cost) const {
    const auto charge = functions_of(policy_->algorithm).charge;
    write_states(state, [=](const Quota& quota, const View& view, std::uint64_t* words) {
        charge(quota, view, cost, words);
    });
}

// Moves the state of each rate to where it will be written, and marks it.
void Check::move_to_rate_slots(std::uint64_t* state) const {
    if (!has_marks(*layout_)) {
        return;
    }
    const std::size_t words = words_per_rate(*layout_);
    for (std::uint32_t i = 0; i < policy_->rates.size; i++) {
        if (rate_slots_.from[i] != rate_slots_.to[i]) {
            std::copy_n(state + rate_slots_.from[i] * words, words, state + rate_slots_.to[i] * words);
        }
    }
    std::uint64_t& marks = state[marks_index(*layout_)];
    marks = mark_rate_slots(policy_->rates, rate_slots_, marks);
}

void Check::give_back(std::uint64_t* state) const {
    if (policy_->rates.size == 0 || cost_ == 0) {
        return;
    }
    if (policy_->min_interval != 0) {
        state[interval_index(*layout_)] = 0;
    }
    const auto refund = functions_of(policy_->algorithm).refund;
    write_states(state, [&](const Quota& quota, const View& view, std::uint64_t* words) {
        refund(quota, view, cost_, words);
    });
}

void Check::undo(const Charge& charge, bool whole, std::uint64_t* state) const {
    if (policy_->rates.size == 0 || cost_ == 0) {
        return;
    }
    if (policy_->min_interval != 0 && whole) {
        state[interval_index(*layout_)] = 0;
    }
    const auto undo = functions_of(policy_->algorithm).undo;
    write_states(state, [&](const Quota& quota, const View& view, std::uint64_t* words) {
        undo(quota, view, cost_, charge, whole, words);
    });
}

// The largest part of the cost that any of the rates may still charge.
std::uint64_t Check::most_owed() const {
    std::uint64_t owed = 0;
    for (std::uint32_t i = 0; i < policy_->rates.size; i++) {
        const std::uint64_t most = most_used(*policy_, policy_->rates.rates[i]);
        owed = std::max(owed, most - std::min(most, views_[i].a));
    }
    return std::min(owed, cost_);
}

// If all rates share a state, it is charged as much as the rate with the most room.
void Check::overdraw(std::uint64_t* state) const {
    if (cost_ == 0) {
        return;
    }
    const auto overdraw = functions_of(policy_->algorithm).overdraw;
    const bool shared = layout_->rates < policy_->rates.size;
    const std::uint64_t owed = shared ? most_owed() : 0;
    write_states(state, [&](const Quota& quota, const View& view, std::uint64_t* words) {
        overdraw(quota, view, cost_, shared ? view.a + owed : most_used(*policy_, quota.rate), words);
    });
    write_weight(state);
}

void Check::impose(std::uint64_t* state) const {
    if (cost_ == 0) {
        charge(state);
        return;
    }
    const auto impose = functions_of(policy_->algorithm).impose;
    write_states(state, [&](const Quota& quota, const View& view, std::uint64_t* words) {
        impose(quota, view, cost_, words);
    });
    finish_charge(state);
}

void Check::charge(std::uint64_t* state) const {
    if (cost_ == 0) {
        write_uncharged(state, 0);
        return;
    }
    write(state, cost_);
    finish_charge(state);
}

void Check::finish_charge(std::uint64_t* state) const {
    if (policy_->min_interval != 0) {
        state[interval_index(*layout_)] = static_cast<std::uint64_t>(admitted_at_);
    }
    write_weight(state);
}

// If the clock was set back or the period changed, the state is written even if nothing is charged: otherwise
// it would not change until the clock reaches its time again.
void Check::write_uncharged(std::uint64_t* state, std::uint64_t cost) const {
    const bool moved =
        std::any_of(views_, views_ + policy_->rates.size, [](const View& view) { return view.moved; });
    if (moved || cost != 0) {
        write(state, cost);
    }
    if (policy_->min_interval != 0 && interval_moved_) {
        state[interval_index(*layout_)] = static_cast<std::uint64_t>(admitted_at_);
    }
}

void Check::refuse(std::uint64_t* state) {
    const bool counts = policy_->count_all && cost_ != 0;
    write_uncharged(state, counts ? cost_ : 0);
    if (!counts) {
        return;
    }
    // The numbers are those after the request was counted.
    const Decision before = decision_;
    evaluate(*policy_, *layout_, state, now_, before.allowed ? 0 : cost_);
    decision_.excess_milli = before.excess_milli;
    write_weight(state);
}

Micros Check::needed_until(const std::uint64_t* state) const {
    Micros longest = 0;
    for (std::uint32_t i = 0; i < policy_->rates.size; i++) {
        longest = std::max(longest, policy_->rates.rates[i].period);
    }
    const auto needed_until = functions_of(policy_->algorithm).needed_until;
    const RateSlots slots = rate_slots_of(*policy_, *layout_, state);
    const std::uint32_t states = std::min(policy_->rates.size, layout_->rates);
    Micros until = 0;
    for (std::uint32_t i = 0; i < states; i++) {
        until = std::max(until, needed_until(quota_of(*policy_, *layout_, i),
                                             words_at(*layout_, slots.from[i], state), longest));
    }
    return until;
}

bool Check::keeps_others(const std::uint64_t* state) const {
    if (layout_->rates <= policy_->rates.size) {
        return false;
    }
    const std::uint64_t marks = state[marks_index(*layout_)];
    const RateSlots slots = find_rate_slots(policy_->rates, *layout_, marks);
    unsigned own = 0;
    for (std::uint32_t i = 0; i < policy_->rates.size; i++) {
        own |= 1U << slots.to[i];
    }
    for (std::uint32_t slot = 0; slot < layout_->rates; slot++) {
        if ((own >> slot & 1) == 0 && (marks >> (slot * 8) & 0xff) != 0) {
            return true;
        }
    }
    return false;
}

void Check::write_weight(std::uint64_t* state) const {
    if (layout_->varied) {
        const std::uint64_t kept = state[weight_index(*layout_)];
        const std::uint64_t used = used_part(decision_.limit, decision_.remaining);
        const Micros until = now_ + decision_.reset_after;
        // What was used under another rate keeps its weight as long as it matters: a rate with a larger quota
        // must not hide it.
        if (kept >> kTimeBits > used && static_cast<Micros>(kept & kLongest) * kSecond > now_) {
            return;
        }
        state[weight_index(*layout_)] = (used << kTimeBits) | static_cast<std::uint64_t>(until / kSecond + 1);
    }
}

std::uint64_t weight_of(const Policy& policy, const StateLayout& layout, const std::uint64_t* state,
                        Micros now) {
    const std::uint64_t kept = layout.varied ? state[weight_index(layout)] : 0;
    if (kept != 0) {
        const Micros until = static_cast<Micros>(kept & kLongest) * kSecond;
        return weight(until > now ? kept >> kTimeBits : 0, until - now);
    }
    const AlgorithmFunctions& functions = functions_of(policy.algorithm);
    const RateSlots slots = rate_slots_of(policy, layout, state);
    std::uint64_t used = 0;
    Micros matters = 0;
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        const Quota q = quota_of(policy, layout, i);
        View view = {};
        const Outcome out = functions.evaluate(q, words_at(layout, slots.from[i], state), now, 0, &view);
        used = std::max(used, used_part(q.limit, out.remaining));
        matters = std::max(matters, out.reset_after);
    }
    if (policy.min_interval != 0) {
        const Micros wait = static_cast<Micros>(state[interval_index(layout)]) + policy.min_interval - now;
        used = std::max<std::uint64_t>(used, wait > 0 ? 1 : 0);
        matters = std::max(matters, wait);
    }
    return weight(used, matters);
}

std::uint64_t used_of(const Policy& policy, const StateLayout& layout, const std::uint64_t* state, Micros now,
                      std::uint32_t rate) {
    const AlgorithmFunctions& functions = functions_of(policy.algorithm);
    const RateSlots slots = rate_slots_of(policy, layout, state);
    const Quota quota = quota_of(policy, layout, rate);
    View view = {};
    functions.evaluate(quota, words_at(layout, slots.from[rate], state), now, 0, &view);
    return functions.used(quota, view);
}

std::uint64_t window_excess(const Policy& policy, const StateLayout& layout, const std::uint64_t* state,
                            Micros now) {
    const AlgorithmFunctions& functions = functions_of(policy.algorithm);
    const RateSlots slots = rate_slots_of(policy, layout, state);
    std::uint64_t most = 0;
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        const Quota q = quota_of(policy, layout, i);
        const std::uint64_t* words = words_at(layout, slots.from[i], state);
        View view = {};
        functions.evaluate(q, words, now, 0, &view);
        const std::uint64_t counted = functions.window_count(q, view, words);
        most = std::max(most, counted - std::min(counted, q.limit));
    }
    return most;
}

std::uint64_t used_part_of(std::uint64_t weight) { return weight >> kTimeBits; }

}  // namespace rate_limit
