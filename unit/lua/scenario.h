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

    StateLayout layout() const {
        return varied ? layout_of(policy, std::max(slots, policy.rates.size), log_entries)
                      : layout_of(policy);
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
    std::uint32_t cost;
};

// A group of requests, and the changes before it.
struct Event {
    Micros move;          // of the clock
    std::uint32_t times;  // that the group is repeated
    bool refund;
    bool imposes;                       // a sync call; with `refund`, a repeated one
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
        out << "zone " << zone.policy << " ceiling=" << zone.policy.ceiling
            << (zone.policy.debt ? " debt" : "") << (zone.varied ? " varied, slots=" : "")
            << (zone.varied ? std::to_string(zone.slots) : "") << "\n";
    }
    Micros now = scenario.start;
    for (const Event& event : scenario.events) {
        now = scenario.moved(now, event.move);
        out << "  at " << now << " (" << std::showpos << event.move << std::noshowpos << ")"
            << (event.refund ? " refund" : "")
            << (event.imposes ? " impose, old " + std::to_string(event.age) : "") << " " << event.times
            << " times";
        for (const ScenarioLimit& limit : event.limits) {
            out << " zone " << limit.zone << " client " << limit.client << " cost " << limit.cost << ";";
        }
        if (event.changes) {
            out << " now " << event.policy;
        }
        out << "\n";
    }
    return out;
}

namespace random {

inline ScenarioZone draw_zone(Algorithm algorithm, unsigned kind) {
    ScenarioZone zone = {draw_policy(algorithm, kind), (kind & kRateChanges) != 0 && *between(0, 2) == 0, 0,
                         0};
    zone.slots = *between<std::uint32_t>(1, kMaxRates);
    zone.log_entries = *between<std::uint32_t>(300, 400);
    if (algorithm == Algorithm::kLeakyBucket || algorithm == Algorithm::kGcra) {
        zone.policy.ceiling = *between(0, 1) == 0 ? 0 : zone.policy.burst + 1;
    }
    zone.policy.debt = (kind & kImposes) != 0 && *between(0, 3) != 0;
    if ((kind & kSteady) != 0) {
        zone.policy.rates.rates[0].count = *rc::gen::oneOf(between(3U, 60U), between(3U, 60'000U));
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
    policy.burst = *between(0, 1) == 0 ? policy.burst : *between(0U, policy.burst);
    policy.min_interval = *between(0, 2) == 0 ? 0 : policy.min_interval;
    return policy;
}

inline Event draw_event(const std::vector<ScenarioZone>& zones, unsigned kind) {
    const auto last = static_cast<std::uint32_t>(zones.size() - 1);
    const std::uint32_t first = *between(0U, last);
    const Policy& policy = zones[first].policy;
    const Rate& rate = policy.rates.rates[*between(0U, policy.rates.size - 1)];
    Event event = {};
    event.move = *any_move(rate, (kind & kStepsBack) != 0);
    event.times = *rc::gen::weightedOneOf<std::uint32_t>({{3, rc::gen::just(1U)}, {2, between(2U, 6U)}});
    event.refund = *between(0, 7) == 0;
    event.imposes = (kind & kImposes) != 0 && *between(0, 1) == 0;
    event.age = *between(0, 1) == 0 ? 0
                                    : *rc::gen::weightedOneOf<Micros>({{2, between<Micros>(0, 3 * kSecond)},
                                                                       {1, between<Micros>(0, rate.period)}});
    const std::uint32_t limits = last == 0 ? 1 : *between(1U, last + 1);
    for (std::uint32_t i = 0; i < limits; ++i) {
        const std::uint32_t zone = (first + i) % (last + 1);
        const Policy& covered = zones[zone].policy;
        // Costs above kMaxCost saturate a counter at once.
        const std::uint32_t cost = *between(0, 39) == 0
                                       ? *one_of<std::uint32_t>({~0U, ~0U - 1, 1U << 31})
                                       : *any_cost(capacity_of(covered, covered.rates.rates[0]));
        event.limits.push_back({zone, *between(0U, 1U), cost});
    }
    if ((kind & kSteady) != 0 && *between(0, 15) != 0) {
        event.move = 1 + *between<Micros>(0, rate.period / *one_of<Micros>({100, 10, 2}));
        event.times = 1;
        event.refund = false;
        event.limits[0].cost = *between(1U, 3 + rate.count / 8);
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
