// Charges requests that were admitted elsewhere, even beyond the limit.
#include "simulation/ledger.h"

#include <algorithm>
#include <cmath>

namespace rate_limit::simulation {

std::string name_of(std::uint32_t client) { return std::to_string(client); }

std::uint32_t client_of(std::string_view name) {
    std::uint64_t client = 0;
    parse_number(name, ~std::uint32_t{0}, &client);
    return static_cast<std::uint32_t>(client);
}

Ledger::Ledger(const Policy& policy, std::uint32_t clients)
    : policy_(&policy), layout_(layout_of(policy)), words_(words_of(layout_)), states_(words_ * clients) {}

// A bucket is charged at the time of admission, or at the time of its last charge if that is later.
Micros Ledger::time_of_charge(const SyncBatch& batch, const std::uint64_t* state, Micros now) const {
    if (!is_bucket(policy_->algorithm) || batch.since == 0) {
        return now;
    }
    const auto last = static_cast<Micros>(state[0] & ((std::uint64_t{1} << 52) - 1));
    return std::min(now, std::max(batch.since, last));
}

// Returns by how much `cost`, charged at `time`, raises the excess over the limit at `now`.
std::uint32_t Ledger::overshoot(const std::uint64_t* state, Micros time, Micros now,
                                std::uint64_t cost) const {
    Check check;
    const Decision& before = check.evaluate(*policy_, layout_, state, time, 0);
    if (cost == 0 || !is_bucket(policy_->algorithm)) {
        return cost - std::min(cost, before.remaining);
    }
    const Rate& rate = policy_->rates.rates[0];
    const double level = static_cast<double>(before.reset_after - (now - time)) * rate.count /
                         static_cast<double>(rate.period);
    const double limit = capacity_of(*policy_, rate);
    return static_cast<std::uint32_t>(std::ceil(std::max(level + cost - std::max(limit, level), 0.0)));
}

void Ledger::apply(const SyncBatch& batch, Micros now, Answer* answer) {
    std::uint64_t& last = guard_[batch.sender];
    const bool applied = batch.sequence <= last;
    answer->time = now;
    answer->overshoots.clear();
    answer->states.clear();
    for (const SyncEntry& entry : batch.entries) {
        std::uint64_t* state = &states_[client_of(entry.name()) * words_];
        const std::uint64_t cost = applied ? 0 : entry.amount;
        const Micros time = cost != 0 ? time_of_charge(batch, state, now) : now;
        answer->overshoots.push_back(overshoot(state, time, now, cost));
        Check check;
        check.evaluate(*policy_, layout_, state, time, cost);
        check.impose(state);
        answer->states.insert(answer->states.end(), state, state + words_);
    }
    last = std::max(last, batch.sequence);
}

}  // namespace rate_limit::simulation
