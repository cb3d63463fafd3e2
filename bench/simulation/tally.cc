// The exact limiter, and totals.
#include "simulation/tally.h"

#include <algorithm>
#include <numeric>

namespace rate_limit::simulation {

Exact::Exact(const Scenario& scenario)
    : policy_(scenario.policy),
      layout_(layout_of(policy_)),
      start_(scenario.start),
      states_(words_of(layout_) * scenario.clients) {}

Decision Exact::decide(const Arrival& arrival) {
    std::uint64_t* state = &states_[arrival.client * words_of(layout_)];
    Check check;
    const Decision decision = check.evaluate(policy_, layout_, state, start_ + arrival.at, 1);
    if (decision.allowed) {
        check.charge(state);
    } else {
        check.refuse(state);
    }
    return decision;
}

Decision Exact::judge(const Arrival& arrival, bool admitted) {
    std::uint64_t* state = &states_[arrival.client * words_of(layout_)];
    Check check;
    const Decision decision = check.evaluate(policy_, layout_, state, start_ + arrival.at, 1);
    if (admitted) {
        check.impose(state);
    }
    return decision;
}

Tally::Tally(const Scenario& scenario)
    : warm_up_(scenario.warm_up),
      period_(scenario.policy.rates.rates[0].period),
      counts_(scenario.clients),
      recent_(scenario.clients) {}

void Tally::add(const Arrival& arrival) {
    counts_[arrival.client] += arrival.at >= warm_up_ ? 1 : 0;
    const auto period = static_cast<std::size_t>(arrival.at / period_);
    periods_.resize(std::max(periods_.size(), period + 1));
    periods_[period]++;
    std::deque<Micros>& recent = recent_[arrival.client];
    while (!recent.empty() && recent.front() <= arrival.at - period_) {
        recent.pop_front();
    }
    recent.push_back(arrival.at);
    worst_ = std::max<std::uint64_t>(worst_, recent.size());
}

std::uint64_t Tally::total() const {
    return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
}

Difference::Difference(const Tally& fleet, const Tally& exact, std::uint32_t clients) {
    for (std::uint32_t i = 0; i < clients; i++) {
        over += fleet.of(i) - std::min(fleet.of(i), exact.of(i));
        under += exact.of(i) - std::min(fleet.of(i), exact.of(i));
    }
}

std::uint64_t most_under(const Scenario& scenario, const Tally& fleet, const Tally& exact) {
    const Micros period = scenario.policy.rates.rates[0].period;
    const auto whole = static_cast<std::size_t>(scenario.duration / period);
    std::uint64_t most = 0;
    for (auto i = static_cast<std::size_t>((scenario.warm_up + period - 1) / period); i < whole; i++) {
        const std::uint64_t own = i < fleet.periods().size() ? fleet.periods()[i] : 0;
        const std::uint64_t possible = i < exact.periods().size() ? exact.periods()[i] : 0;
        most = std::max(most, possible - std::min(own, possible));
    }
    return most;
}

}  // namespace rate_limit::simulation
