// Generates random requests of several clients to several zones, for RapidCheck.
#pragma once

#include <ostream>
#include <vector>

#include "trace.h"

namespace rate_limit {

// A zone whose rates may change. If `varied`, its state has room for other rates.
struct ScenarioZone {
    Policy policy;
    bool varied;
    std::uint32_t slots;        // if varied
    std::uint32_t log_entries;  // if varied
    bool large;                 // the state is large even if the counts are small

    StateLayout layout() const {
        StateLayout layout =
            varied ? layout_of(policy, std::max(slots, policy.rates.size), log_entries) : layout_of(policy);
        layout.large = layout.large || (large && !has_state<StateKind::kLog>(policy.algorithm));
        return layout;
    }
};

// A kind of scenario, in addition to those of unit/trace.h: some groups are sync calls, and most zones have
// `debt`.
constexpr unsigned kImposes = 32;

// Another kind: most requests fit, and each is alone in its call, shortly after the one before.
constexpr unsigned kSteady = 64;

struct ScenarioLimit {
    std::uint32_t zone;
    std::uint32_t client;
    std::uint64_t cost;
    Micros before = 0;       // if the group undoes a charge: how long ago it was made,
    std::uint64_t more = 0;  // and how much more it cost
    bool newest = false;     // with kUndoRequest: the newest requests are given back
};

// A group of requests, and the changes before it.
struct Event {
    Micros move;          // of the clock
    std::uint32_t times;  // that the group is repeated
    GroupKind kind;
    bool imposes;                       // a sync call
    bool repeats;                       // the same sync call again
    Micros age;                         // of the requests of the sync call
    std::vector<ScenarioLimit> limits;  // of different zones
    bool changes;                       // from here on the first limit's zone has `policy`
    Policy policy;
};

struct Scenario {
    std::vector<ScenarioZone> zones;
    Micros start;
    std::vector<Event> events;

    // The time after `move`. A log that follows a clock that was set back must not begin before time 0.
    Micros moved(Micros now, Micros move) const {
        Micros least = 1;
        for (const ScenarioZone& zone : zones) {
            least = zone.policy.algorithm == Algorithm::kSlidingLog ? kMaxPeriod + kSecond : least;
        }
        return std::max(least, rate_limit::moved(now, move));
    }
};

inline std::ostream& operator<<(std::ostream& out, const Scenario& scenario) {
    for (const ScenarioZone& zone : scenario.zones) {
        out << "zone " << zone.policy << " ceiling=" << zone.policy.ceiling << (zone.large ? " large" : "")
            << (zone.policy.debt ? " debt" : "") << " overdraft=" << zone.policy.overdraft
            << (zone.varied ? " varied, slots=" : "") << (zone.varied ? std::to_string(zone.slots) : "")
            << "\n";
    }
    Micros now = scenario.start;
    for (const Event& event : scenario.events) {
        now = scenario.moved(now, event.move);
        out << "  at " << now << " (" << std::showpos << event.move << std::noshowpos << ")"
            << (event.kind == kDecide ? "" : " kind " + std::to_string(event.kind))
            << (event.imposes ? " impose, old " + std::to_string(event.age) : "") << " " << event.times
            << " times";
        for (const ScenarioLimit& limit : event.limits) {
            out << " zone " << limit.zone << " client " << limit.client << " cost " << limit.cost;
            if (event.kind >= kUndo) {
                out << " of " << limit.cost + limit.more << " charged " << limit.before << " ago"
                    << (limit.newest ? " or the newest" : "");
            }
            out << ";";
        }
        if (event.changes) {
            out << " now " << event.policy;
        }
        out << "\n";
    }
    return out;
}

namespace random {

// If a zone has several rates, its states stay large or small: Redis leaves the states of other rates as they
// are.
inline void keep_size(const ScenarioZone& zone, unsigned kind, Policy* policy) {
    if (zone.large || (!zone.varied && (kind & kSeveralRates) == 0)) {
        return;
    }
    policy->burst = std::min(policy->burst, kMaxSmallCount - 1);
    policy->capacity = std::min(policy->capacity, kMaxSmallCount);
    for (std::uint32_t i = 0; i < policy->rates.size; ++i) {
        policy->rates.rates[i].count = std::min(policy->rates.rates[i].count, kMaxSmallCount);
    }
}

inline ScenarioZone draw_zone(Algorithm algorithm, unsigned kind) {
    ScenarioZone zone = {draw_policy(algorithm, kind), (kind & kRateChanges) != 0 && *between(0, 2) == 0, 0,
                         0, *between(0, 2) == 0};
    keep_size(zone, kind, &zone.policy);
    zone.slots = *between<std::uint32_t>(1, kMaxRates);
    zone.log_entries = *between<std::uint32_t>(300, 400);
    if (algorithm == Algorithm::kLeakyBucket || algorithm == Algorithm::kGcra) {
        zone.policy.ceiling = *between(0, 1) == 0 ? 0 : zone.policy.burst + 1;
    }
    zone.policy.debt = (kind & kImposes) != 0 && *between(0, 3) != 0;
    zone.policy.overdraft = *rc::gen::weightedOneOf<std::uint64_t>({{2, rc::gen::just<std::uint64_t>(0)},
                                                                    {1, rc::gen::just(kOneMore)},
                                                                    {1, between<std::uint64_t>(1, 20)}});
    if ((kind & kSteady) != 0) {
        zone.policy.rates.rates[0].count =
            *rc::gen::oneOf(between<std::uint64_t>(3, 60), between<std::uint64_t>(3, 60'000));
    }
    return zone;
}

// Another policy of the same zone: other rates, and perhaps a smaller burst or no min_interval.
inline Policy draw_change(const ScenarioZone& zone, unsigned kind) {
    Policy policy = zone.policy;
    const bool several = (kind & kSeveralRates) != 0 && *between(0, 3) != 0;
    if ((kind & kSteady) != 0) {
        policy.rates.rates[0].count = *between(1U, 60U);
    } else if (*between(0, 2) == 0) {
        policy.rates.rates[0].count = *any_count(policy.algorithm);
    } else {
        policy.rates = draw_rates(policy.algorithm, several);
    }
    policy.burst = *between(0, 1) == 0 ? policy.burst : *between<std::uint64_t>(0, policy.burst);
    policy.min_interval = *between(0, 2) == 0 ? 0 : policy.min_interval;
    keep_size(zone, kind, &policy);
    return policy;
}

// How long ago a charge was made: just now, in this or an earlier window, or a second in the future.
inline rc::Gen<Micros> any_before(const Rate& rate) {
    return rc::gen::weightedOneOf<Micros>({{3, rc::gen::just<Micros>(0)},
                                           {3, between<Micros>(0, rate.period)},
                                           {2, between<Micros>(0, 3 * rate.period)},
                                           {1, between<Micros>(-2 * kSecond, 2 * kSecond)}});
}

inline rc::Gen<std::uint64_t> any_more() {
    return rc::gen::weightedOneOf<std::uint64_t>({{2, rc::gen::just<std::uint64_t>(0)},
                                                  {2, between<std::uint64_t>(0, 20)},
                                                  {1, between<std::uint64_t>(0, kMaxCost)}});
}

inline Event draw_event(const std::vector<ScenarioZone>& zones, unsigned kind) {
    const auto last = static_cast<std::uint32_t>(zones.size() - 1);
    const std::uint32_t first = *between(0U, last);
    const Policy& policy = zones[first].policy;
    const Rate& rate = policy.rates.rates[*between(0U, policy.rates.size - 1)];
    Event event = {};
    event.move = *any_move(rate, (kind & kStepsBack) != 0);
    event.times = *rc::gen::weightedOneOf<std::uint32_t>({{3, rc::gen::just(1U)}, {2, between(2U, 6U)}});
    event.kind =
        *rc::gen::weightedElement<GroupKind>({{14, kDecide}, {2, kUndo}, {2, kUndoRequest}, {2, kOverdraw}});
    event.repeats = *between(0, 7) == 0;
    event.imposes = (kind & kImposes) != 0 && *between(0, 1) == 0;
    event.age = *between(0, 1) == 0 ? 0
                                    : *rc::gen::weightedOneOf<Micros>({{2, between<Micros>(0, 3 * kSecond)},
                                                                       {1, between<Micros>(0, rate.period)}});
    const std::uint32_t limits = last == 0 ? 1 : *between(1U, last + 1);
    for (std::uint32_t i = 0; i < limits; ++i) {
        const std::uint32_t zone = (first + i) % (last + 1);
        const Policy& covered = zones[zone].policy;
        // These costs saturate a counter at once.
        const std::uint64_t cost = *between(0, 39) == 0
                                       ? *one_of<std::uint64_t>({~0U, ~0U - 1, 1U << 31, kMaxCost - 1})
                                       : *any_cost(capacity_of(covered, covered.rates.rates[0]));
        const bool newest = event.kind == kUndoRequest && *between(0, 1) == 0;
        event.limits.push_back({zone, *between(0U, 1U), cost, *any_before(rate), *any_more(), newest});
    }
    if ((kind & kSteady) != 0 && *between(0, 15) != 0) {
        event.move = 1 + *between<Micros>(0, rate.period / *one_of<Micros>({100, 10, 2}));
        event.times = 1;
        event.kind = kDecide;
        event.limits[0].cost = *between<std::uint64_t>(1, 3 + rate.count / 8);
    }
    if ((kind & kRateChanges) != 0 && *between(0, 7) == 0) {
        event.changes = true;
        event.policy = draw_change(zones[first], kind);
    }
    return event;
}

}  // namespace random

// Scenarios of a `kind`; kinds can be or-ed. The first zone has `algorithm`. The other zones have random
// algorithms and kinds.
inline rc::Gen<Scenario> any_scenario(Algorithm algorithm, unsigned kind, std::uint32_t most_zones) {
    using random::between;
    const auto zones = rc::gen::exec([=] {
        std::vector<ScenarioZone> drawn = {random::draw_zone(algorithm, kind)};
        for (std::uint32_t more = *between(1U, most_zones); more > 1; --more) {
            drawn.push_back(random::draw_zone(
                *random::one_of<Algorithm>({kEveryAlgorithm, kEveryAlgorithm + kAlgorithms}),
                kind & (*between(0U, 31U) | kImposes)));
        }
        return drawn;
    });
    return rc::gen::mapcat(zones, [=](const std::vector<ScenarioZone>& drawn) {
        const Micros period = drawn[0].policy.rates.rates[0].period;
        const auto start = rc::gen::weightedOneOf<Micros>({
            {4, between<Micros>(kMidnight, 2 * kMidnight)},
            {2, rc::gen::map(between<Micros>(1, 9), [=](Micros windows) { return windows * period; })},
            {1, between<Micros>(1, kDay)},
            {1, between<Micros>(kTraceEnd - kYear, kTraceEnd)},
        });
        const auto event = rc::gen::exec([=] { return random::draw_event(drawn, kind); });
        const auto events = rc::gen::container<std::vector<Event>>(event);
        return rc::gen::map(rc::gen::pair(start, events),
                            [=](const std::pair<Micros, std::vector<Event>>& pair) {
                                return Scenario{drawn, pair.first, pair.second};
                            });
    });
}

}  // namespace rate_limit
