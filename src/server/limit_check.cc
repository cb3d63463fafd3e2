// Reads and writes the value of a client's key.
#include "server/limit_check.h"

#include <algorithm>

namespace rate_limit {
namespace {

// The expiry in a value if its rates may have written it. Most states are not needed for longer than three of
// the longest periods, so a later expiry is garbage. The level of a bucket may be needed for longer.
Micros believed(const StateLayout& layout, Micros expiry, Micros now) {
    const Micros last = now + 3 * kMaxPeriod;
    return expiry <= last ? expiry : is_bucket(layout.algorithm) ? last : 0;
}

// The states of one limit, since the server runs one command at a time.
std::uint64_t states_before[kMostStoredWords];
std::uint64_t refreshed[kMostStoredWords];

}  // namespace

void LimitCheck::remember() const { std::copy_n(words, words_of(policy->layout), states_before); }

bool LimitCheck::has_changed() const {
    return !std::equal(words, words + words_of(policy->layout), states_before);
}

std::uint64_t LimitCheck::interval_before() const { return states_before[interval_index(policy->layout)]; }

void LimitCheck::load(const ReadPolicy& of, std::string_view value) {
    policy = &of;
    present = value.data() != nullptr;
    decode_stored(of.policy, of.layout, value, words, &form);
}

bool LimitCheck::only_interval() const {
    const StateLayout& layout = policy->layout;
    return layout.interval && std::equal(words, words + interval_index(layout), states_before);
}

Micros LimitCheck::needed_until(Micros now, Micros extra, bool uncharged) const {
    const StateLayout& layout = policy->layout;
    const std::uint64_t* states = words;
    if (uncharged && only_interval()) {
        // The states of the rates are unchanged: compute the expiry from what they are now.
        std::copy_n(words, words_of(layout), refreshed);
        check.refresh(refreshed);
        states = refreshed;
    }
    Micros until = check.needed_until(states) + extra;
    if (layout.interval && words[interval_index(layout)] != 0) {
        until =
            std::max(until, static_cast<Micros>(words[interval_index(layout)]) + policy->policy.min_interval);
    }
    const bool log = has_state<StateKind::kLog>(layout.algorithm);
    if (has_expiry(layout) && (log ? words[1] >> 32 != 0 : check.keeps_others(words))) {
        until = std::max(until, believed(layout, form.expiry, now));
    }
    return until;
}

// A log that has lost its last entry to an undone charge is gone.
void LimitCheck::note_written(bool undone) {
    const bool lost = undone && states_before[1] >> 32 != 0 && (words[0] | words[1]) == 0;
    form.log = !lost;
}

void LimitCheck::save(std::size_t position, Micros now, Micros expires, CommandKeys* keys) {
    static char value[kLongestStored];
    form.expiry = expires;
    if (expires > now) {
        keys->write(position, {value, encode_stored(policy->layout, words, form, value)}, expires);
    } else if (present) {
        keys->remove(position);
    }
}

}  // namespace rate_limit
