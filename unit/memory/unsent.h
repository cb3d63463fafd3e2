// Clients by name, in tables with unsent counts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shared_zone.h"

namespace rate_limit {

// A policy that may go beyond its limit, as in a zone with sync=.
inline Policy with_debt(Policy policy) {
    policy.debt = true;
    return policy;
}

// The name must outlive it.
inline TableLimit limit_of(const Zone& zone, std::string_view name, std::uint64_t cost = 1) {
    TableLimit limit = zone.limit(zone->hash(name), cost);
    limit.name = name;
    return limit;
}

inline Verdict use(const Zone& zone, std::string_view name, std::uint64_t cost = 1, Micros now = kNow,
                   const Process& process = this_process()) {
    TableLimit limit = limit_of(zone, name, cost);
    return check(&limit, 1, now, process);
}

// A copy of the unsent count of a client.
struct UnsentCopy {
    bool known = false;
    bool marked = false;
    std::uint32_t unsent = 0;
    std::uint32_t sending = 0;
    std::uint64_t sender = 0;
    std::uint64_t sequence = 0;
    std::string name;
    RateList rates = {};
};

inline UnsentCopy unsent_of(Table& table, std::uint64_t client) {
    UnsentCopy unsent;
    const Slot slot = table.find(client, this_process());
    if (slot.state == nullptr) {
        return unsent;
    }
    const UnsentCount& counts = table.unsent_of(slot);
    unsent.known = true;
    unsent.unsent = counts.unsent();
    unsent.sending = counts.sending();
    unsent.sender = counts.sender();
    unsent.sequence = counts.sequence();
    unsent.name = counts.name();
    unsent.rates = counts.rates();
    for (std::uint64_t i = 0; i < table.slots(); i++) {
        unsent.marked |= table.unsent_counts().at(i) == &counts && table.unsent_counts().is_marked(i);
    }
    Table::keep(slot, this_process());
    return unsent;
}

inline UnsentCopy unsent_of(const Zone& zone, std::string_view name) {
    return unsent_of(zone.table(), zone->hash(name));
}

inline std::uint64_t marks(Table& table) {
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < table.slots(); i++) {
        count += table.unsent_counts().is_marked(i) ? 1 : 0;
    }
    return count;
}

// Marks the unsent count of a client as in flight.
inline void send(Table& table, std::uint64_t client, std::uint64_t sender, std::uint64_t sequence) {
    const Slot slot = table.find(client, this_process());
    assert_non_null(slot.state);
    UnsentCount& counts = table.unsent_of(slot);
    counts.send(counts.unsent(), sender, sequence, kNow);
    Table::keep(slot, this_process());
}

// Clears the unsent count of a client.
inline void confirm(const Zone& zone, std::string_view name) {
    const Slot slot = zone->find(zone->hash(name), this_process());
    assert_non_null(slot.state);
    zone->unsent_of(slot).take_unsent();
    zone->unmark(slot);
    zone->keep(slot, this_process());
}

inline std::string name_of(unsigned number) { return "client " + std::to_string(number); }

}  // namespace rate_limit
