// What happens to a locked entry: pace, portions, and when to ask for another one.
#include <algorithm>

#include "core/arithmetic.h"
#include "lease/leases.h"
#include "memory/policy_mark.h"

namespace rate_limit {
namespace {

constexpr Micros kTick = kLeaseHorizon / 2;        // a pace is measured over this time
constexpr Micros kLongTick = 5 * kTick;            // older paces do not matter after this time
constexpr Micros kAfterChange = kSecond;           // no ask after a change of the policy
constexpr std::uint64_t kMostDemand = 1ULL << 40;  // units in a tick

// How many units a pace needs in a time.
std::uint64_t needed(std::uint64_t pace, Micros time) {
    return divide(multiply(pace, static_cast<std::uint64_t>(std::max<Micros>(time, 0))), kSecond).value;
}

}  // namespace

void Leases::note_demand(Entry* entry, std::uint64_t cost, Micros now) {
    entry->used_at = now;
    entry->demand = std::min(entry->demand + cost, kMostDemand);
    const Micros passed = now - entry->tick;
    if (passed < kTick) {
        return;
    }
    const std::uint64_t pace = entry->demand * kSecond / static_cast<std::uint64_t>(passed);
    const bool forget = pace > entry->pace || passed >= kLongTick;
    entry->pace = forget ? pace : (entry->pace * 3 + pace) / 4;
    entry->demand = 0;
    entry->tick = now;
}

// The units of a portion that may be used: see terms.h.
std::uint64_t Leases::usable(const Entry& entry, const Portion& portion, Micros now) {
    if (portion.left == 0 || now >= portion.ends) {
        return 0;
    }
    if (portion.window_end != 0) {
        return portion.left;
    }
    const Rate& rate = entry.rates.rates[portion.rate];
    const auto period = static_cast<std::uint64_t>(rate.period);
    const Wide undrained = multiply(rate.count, static_cast<std::uint64_t>(portion.drains - now));
    return multiply(portion.left, period) <= undrained ? portion.left : divide(undrained, period).value;
}

std::uint64_t Leases::usable(const Entry& entry, Micros now) {
    return usable(entry, entry.portions[0], now) + usable(entry, entry.portions[1], now);
}

// Charges a cost that the portions have, the older one first.
void Leases::charge(Entry* entry, std::uint64_t cost, Micros now, LeaseTake* take) {
    Portion& older = entry->portions[0];
    Portion& newer = entry->portions[1];
    const std::uint64_t units[] = {usable(*entry, older, now), usable(*entry, newer, now)};
    const std::uint64_t first = std::min(cost, units[0]);
    older.left = units[0] - first;
    newer.left = units[1] - (cost - first);
    take->use = LeaseUse::kTaken;
    // Units of both portions go back to the older one, which ends first.
    take->portion = first != 0 ? older.id : newer.id;
    take->decided_at = now + (older.window_end != 0 ? older.window_end - older.ends : entry->ahead);
    Decision& decision = take->decision;
    decision = {};
    decision.allowed = true;
    decision.rate = static_cast<std::uint8_t>(entry->rate);
    decision.remaining = entry->remaining + older.left + newer.left;
    decision.reset_after = std::max<Micros>(entry->reset_at - now, 0);
}

void Leases::reject(const Entry& entry, Micros now, LeaseTake* take) {
    take->use = LeaseUse::kDry;
    take->decided_at = now + entry.ahead;
    Decision& decision = take->decision;
    decision = {};
    decision.rate = static_cast<std::uint8_t>(entry.rate);
    decision.remaining = std::min(entry.remaining, entry.dry - 1);
    decision.reset_after = std::max<Micros>(entry.reset_at - now, 0);
    decision.retry_after = std::max<Micros>(entry.retry_at - now, 1);
    decision.excess_milli = entry.excess_milli;
}

// Whether to ask for another portion, for a lease that has `units` left.
LeaseAsk Leases::next_ask(Entry* entry, const Policy& policy, const LeaseSize& size, std::uint64_t units,
                          Micros now) {
    if (now < entry->ask_again || is_asking(*entry, now)) {
        return {};
    }
    const Micros lead = std::clamp(2 * entry->round_trip, kLeaseHorizon / 4, kLeaseHorizon);
    if (units > needed(entry->pace, lead)) {
        return {};
    }
    Micros time = kLeaseHorizon;
    const Portion& portion = entry->portions[0];
    if (portion.window_end != 0 && now < portion.ends) {
        time = std::min(time, portion.ends - now);
    }
    const std::uint64_t target = std::min(needed(entry->pace, time), most_leased(policy, size));
    if (target <= units || target < 2 * entry->missed) {
        return {};
    }
    entry->last_id += entry->last_id + 1 != 0 ? 1 : 2;
    entry->asked = entry->last_id;
    entry->asked_at = now;
    return {target - units, entry->asked};
}

// Removes the units of a window. Those of a bucket are not given back.
LeaseRest Leases::take_rest(Entry* entry) {
    Portion& portion = entry->portions[0];
    if (portion.window_end == 0) {
        return {};
    }
    const LeaseRest rest = {portion.left, portion.charged_at};
    portion.left = 0;
    return rest;
}

// Starts the lease of a client whose policy has changed, or which is new.
LeaseRest Leases::restart(Entry* entry, const LeaseClient& client, Micros now) {
    const LeaseRest rest = take_rest(entry);
    drop_units(entry);
    entry->mark = policy_mark(*client.policy);
    entry->rates = client.policy->rates;
    entry->used_at = now;
    entry->ask_again = now + kAfterChange;
    entry->name_size = static_cast<std::uint32_t>(std::min(client.name.size(), kLongestName));
    std::copy_n(client.name.data(), entry->name_size, entry->name);
    return rest;
}

// Adds a portion. The entry has one portion of a window, or two of a bucket.
void Leases::add_portion(Entry* entry, const Portion& portion, Micros now, LeaseRest* rest) {
    Portion& older = entry->portions[0];
    Portion& newer = entry->portions[1];
    if (portion.window_end != 0) {
        if (older.id != 0 && older.window_end == portion.window_end) {
            older.left += portion.left;
            older.ends = std::max(older.ends, portion.ends);
            return;
        }
        *rest = take_rest(entry);
        older = portion;
        return;
    }
    const std::uint64_t units[] = {usable(*entry, older, now), usable(*entry, newer, now)};
    if (units[0] == 0 || (units[1] != 0 && older.rate != newer.rate)) {
        older = newer;
    } else {
        // All these units end with the older portion, which is early for some of them.
        older.left = units[0] + units[1];
    }
    newer = portion;
}

}  // namespace rate_limit
