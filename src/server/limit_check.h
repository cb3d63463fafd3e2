// The check of one limit of a call: reads the value of the client's key, and writes what has changed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "algorithms/check.h"
#include "protocol/stored_state.h"
#include "server/keys.h"
#include "server/policies.h"

namespace rate_limit {

struct LimitCheck {
    const ReadPolicy* policy = nullptr;
    std::uint64_t cost = 0;
    Charge charge = {};  // that the group undoes
    bool present = false;
    StoredForm form = {};
    Check check = {};
    std::uint64_t words[kMostStoredWords];

    // Reads the value of the key.
    void load(const ReadPolicy& of, std::string_view value);

    void evaluate(Micros now, std::uint64_t amount) {
        check.evaluate(policy->policy, policy->layout, words, now, amount);
    }

    // Copies the state, so that the next two functions can compare it later.
    void remember() const;
    bool has_changed() const;
    // Whether nothing but the time of the last admitted request has changed since remember().
    bool only_interval() const;
    std::uint64_t interval_before() const;

    // The time until which the state is needed at `now`. The rates need it for `extra` longer. `uncharged`:
    // the state has changed without a charge since remember().
    Micros needed_until(Micros now, Micros extra, bool uncharged) const;

    // To be called after a change of the states. `undone`: the change has undone a charge.
    void note_written(bool undone);

    // Writes the state to the key, or removes the key if the state is not needed any more.
    void save(std::size_t position, Micros now, Micros expires, CommandKeys* keys);
};

}  // namespace rate_limit
