// A client of a limit for tests: policy, state, and requests.
#pragma once

#include <cassert>
#include <cstdint>
#include <string_view>
#include <vector>

#include "algorithms/check.h"

namespace rate_limit {

constexpr Micros kMinute = 60 * kSecond;
constexpr Micros kHour = 60 * kMinute;
constexpr Micros kDay = 24 * kHour;
constexpr Micros kYear = 365 * kDay;

// A midnight of 2023: windows of seconds, minutes, hours and days that divide a day start here.
constexpr Micros kMidnight = 19675 * kDay;

constexpr Algorithm kEveryAlgorithm[] = {
#define ROW(enumerator, name, state, options) Algorithm::k##enumerator,
    RATE_LIMIT_ALGORITHMS(ROW)
#undef ROW
};

inline RateList rates_of(std::string_view text) {
    RateList list{};
    const char* error = parse_rates(text, &list);
    assert(error == nullptr);
    static_cast<void>(error);
    return list;
}

// If the algorithm takes a burst, the burst is such that every algorithm admits the first rate's count at
// once.
inline Policy policy_of(Algorithm algorithm, std::string_view rates) {
    Policy policy;
    policy.algorithm = algorithm;
    policy.rates = rates_of(rates);
    if (takes<kTakesBurst>(algorithm)) {
        policy.burst = policy.rates.rates[0].count - 1;
    }
    return policy;
}

class Client {
  public:
    explicit Client(const Policy& policy) : Client(policy, layout_of(policy)) {}
    Client(const Policy& policy, const StateLayout& layout)
        : policy_(policy), layout_(layout), charged_(policy.rates), state_(words_of(layout)) {}

    // The decision on a request, without a change of the state.
    Decision peek(Micros now, std::uint64_t cost = 1) const {
        Check check;
        return check.evaluate(policy_, layout_, state_.data(), now, cost);
    }

    Decision look(Micros now) const { return peek(now, 0); }

    Decision request(Micros now, std::uint64_t cost = 1) {
        Check check;
        if (check.evaluate(policy_, layout_, state_.data(), now, cost).allowed) {
            check.charge(state_.data());
        } else {
            check.refuse(state_.data());
        }
        charged_ = policy_.rates;
        return check.decision();
    }

    // A request that another limit rejects, whatever this one says.
    Decision refused(Micros now, std::uint64_t cost = 1) {
        Check check;
        check.evaluate(policy_, layout_, state_.data(), now, cost);
        check.refuse(state_.data());
        charged_ = policy_.rates;
        return check.decision();
    }

    // How many of `requests` at `now` are admitted.
    unsigned admitted(Micros now, unsigned requests) {
        unsigned count = 0;
        for (unsigned i = 0; i < requests; ++i) {
            count += request(now).allowed ? 1 : 0;
        }
        return count;
    }

    void set_rates(const RateList& rates) {
        const RateList before = policy_.rates;
        policy_.rates = rates;
        if (!holds(layout_, policy_)) {
            reshape(layout_of(policy_), before);
        }
    }

    void reshape(const StateLayout& layout) { reshape(layout, policy_.rates); }

    // Converts the state, which was used with the rates `before`, to another layout and the present rates.
    void reshape(const StateLayout& layout, const RateList& before) {
        assert(can_convert(layout_, layout));
        std::vector<std::uint64_t> state(words_of(layout));
        convert(layout_, before, state_.data(), layout, policy_.rates, state.data());
        state_ = state;
        layout_ = layout;
    }

    std::uint64_t weight(Micros now) const { return weight_of(policy_, layout_, state_.data(), now); }

    Policy& policy() { return policy_; }
    const Policy& policy() const { return policy_; }
    const StateLayout& layout() const { return layout_; }
    const std::vector<std::uint64_t>& state() const { return state_; }

  private:
    Policy policy_;
    StateLayout layout_;
    RateList charged_;  // the rates of the last request
    std::vector<std::uint64_t> state_;
};

}  // namespace rate_limit
