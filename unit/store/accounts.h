// Clients by their names, in tables with accounts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shared_zone.h"

namespace rate_limit {

// The name must outlive it.
inline Limit limit_of(const Zone& zone, std::string_view name, std::uint32_t cost = 1) {
    Limit limit = zone.limit(zone->hash(name), cost);
    limit.name = name;
    return limit;
}

inline Verdict use(const Zone& zone, std::string_view name, std::uint32_t cost = 1, Micros now = kNow,
                   const Host& host = this_process()) {
    Limit limit = limit_of(zone, name, cost);
    return check(&limit, 1, now, host);
}

// A copy of what a client's account says.
struct Owed {
    bool known = false;
    bool marked = false;
    std::uint32_t unsent = 0;
    std::uint32_t sending = 0;
    std::uint64_t sender = 0;
    std::uint64_t sequence = 0;
    std::string name;
    RateList rates = {};
};

inline Owed owed_by(Table& table, std::uint64_t client) {
    Owed owed;
    const Slot slot = table.find(client, this_process());
    if (slot.state == nullptr) {
        return owed;
    }
    const Account& account = table.account_of(slot);
    owed.known = true;
    owed.unsent = account.unsent();
    owed.sending = account.sending();
    owed.sender = account.sender();
    owed.sequence = account.sequence();
    owed.name = account.name();
    owed.rates = account.rates();
    for (std::uint64_t i = 0; i < table.slots(); i++) {
        owed.marked |= table.accounts().at(i) == &account && table.accounts().is_marked(i);
    }
    Table::keep(slot, this_process());
    return owed;
}

inline Owed owed_by(const Zone& zone, std::string_view name) {
    return owed_by(zone.table(), zone->hash(name));
}

inline std::uint64_t marks(Table& table) {
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < table.slots(); i++) {
        count += table.accounts().is_marked(i) ? 1 : 0;
    }
    return count;
}

// Puts what a client owes on its way.
inline void send(Table& table, std::uint64_t client, std::uint64_t sender, std::uint64_t sequence) {
    const Slot slot = table.find(client, this_process());
    assert_non_null(slot.state);
    Account& account = table.account_of(slot);
    account.send(account.unsent(), sender, sequence);
    Table::keep(slot, this_process());
}

// Forgets what a client owes.
inline void settle(const Zone& zone, std::string_view name) {
    const Slot slot = zone->find(zone->hash(name), this_process());
    assert_non_null(slot.state);
    zone->account_of(slot).take_unsent();
    zone->unmark(slot);
    zone->keep(slot, this_process());
}

inline std::string name_of(unsigned number) { return "client " + std::to_string(number); }

}  // namespace rate_limit
