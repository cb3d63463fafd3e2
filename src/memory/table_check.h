// Limits whose state is in shared memory: decides a request's limits together, and charges all of them or
// none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string_view>
#include <type_traits>

#include "algorithms/check.h"
#include "core/client_name.h"
#include "memory/process.h"
#include "memory/table.h"

namespace rate_limit {

// One of a request's limits.
struct TableLimit {
    Table* table;
    const Policy* policy;  // has rates; the table's layout must fit it
    std::uint64_t client;  // Table::hash of the client's name, as short_name gives it
    std::uint64_t cost;    // 0 only reads
    Decision decision;     // set by the functions below
    // Only if the table has unsent counts: the client's name, as short_name gives it, and the rates by which
    // Redis will charge the client; null for the policy's rates.
    std::string_view name = {};
    const RateList* rates = nullptr;
    Micros ahead = 0;  // added to `now` for decisions; see UnsentCounts::ahead()
};

// Makes a limit from a client's name. `is_short` means that short_name has been applied to the name. `room`
// must live as long as the limit.
inline TableLimit memory_limit(Table* table, const Policy& policy, std::string_view client,
                               std::uint64_t cost, NameRoom* room, bool is_short = false) {
    client = short_name(client, is_short, room);
    TableLimit limit = {table, &policy, table->hash(client), cost, {}};
    if (table->has_unsent_counts()) {
        limit.name = client;
        limit.ahead = table->unsent_counts().ahead();
    }
    return limit;
}

// A request's limits. Each limit is constructed when it is added: constructing kMaxLimits of them would slow
// down every request.
class TableLimits {
  public:
    TableLimit* add(Table* table, const Policy& policy, std::string_view client, std::uint64_t cost,
                    bool is_short = false) {
        auto* limit = new (&room_[size_])
            TableLimit(memory_limit(table, policy, client, cost, &name_rooms_[size_], is_short));
        size_++;
        return limit;
    }

    TableLimit* data() { return reinterpret_cast<TableLimit*>(room_); }
    const TableLimit& operator[](std::size_t index) const {
        return reinterpret_cast<const TableLimit*>(room_)[index];
    }
    std::size_t size() const { return size_; }

  private:
    std::size_t size_ = 0;
    std::aligned_storage_t<sizeof(TableLimit), alignof(TableLimit)> room_[kMaxLimits];
    NameRoom name_rooms_[kMaxLimits];
};

enum class Verdict : std::uint8_t {
    kAdmitted,  // every limit is charged
    kRejected,  // by at least one limit; the other decisions are what those limits would have answered
    kBusy,      // nothing was decided or charged: a limit found no slot for its client
};

// Decides and charges the limits, which must be of different tables, and at most kMaxLimits.
Verdict check(TableLimit* limits, std::size_t count, Micros now, const Process& process);

// Like check(), for a request with one limit.
Verdict check_by_name(Table* table, const Policy& policy, std::string_view client, std::uint64_t cost,
                      Micros now, const Process& process, Decision* decision, bool is_short = false);

// Like check_by_name(), but faster. Requires is_single(policy, table->layout()), which most limits fulfil.
[[gnu::always_inline]] inline Verdict check_single(Table* table, const Policy& policy,
                                                   std::string_view client, std::uint64_t cost, Micros now,
                                                   const Process& process, Decision* decision) {
    if (cost == 0 || !is_short_name(client)) {
        return check_by_name(table, policy, client, cost, now, process, decision);
    }
    const bool has_unsent = table->has_unsent_counts();
    const Micros ahead = has_unsent ? table->unsent_counts().ahead() : 0;
    now += ahead;
    table->note_time(now, policy, process);
    const Slot slot = table->acquire(table->hash(client), policy, now, process);
    if (slot.state == nullptr) {
        return Verdict::kBusy;
    }
    decide_single(policy, table->layout(), slot.state, now, cost, decision);
    if (!decision->allowed && slot.fresh) {
        Table::drop(slot, process);
        return Verdict::kRejected;
    }
    if (has_unsent && decision->allowed) {
        table->add_unsent(slot, cost, client, policy.rates, now - ahead);
    }
    Table::keep(slot, process);
    return decision->allowed ? Verdict::kAdmitted : Verdict::kRejected;
}

// Like check(), but does not charge an admitted request: Redis has to decide, too.
Verdict precheck(TableLimit* limits, std::size_t count, Micros now, const Process& process);

// Updates a fallback table after Redis has decided, so that the table can continue from Redis's state in an
// outage. `left` is this instance's part of the remaining requests that Redis reports. False if the table
// rejects a request that Redis has admitted. The table does so only while Redis may lack requests that this
// or another instance has admitted as a fallback: while the client has an unsent count, and for
// kFallbackLasts after the last request that the fallback admitted, and after `back_at`, when Redis answered
// again (see Membership).
constexpr Micros kFallbackLasts = 2 * kSecond;
bool follow_redis(TableLimit* limit, const Decision& said, std::uint64_t left, Micros back_at, Micros now,
                  const Process& process);

// Undoes a part of a charge, `limit.cost`, as far as the charge still counts; see Check::undo. `charge.at` is
// by this machine's clock. Returns how much of the cost Redis has to give back, because the charge was sent
// to Redis already; 0 for a table without unsent counts. The decision is not valid afterwards.
std::uint64_t undo(const TableLimit& limit, Charge charge, bool whole, Micros now, const Process& process);

// Gives back the newest requests of a client that still count, as many as `limit.cost`; see Check::give_back.
// Returns how much of the cost Redis has to give back: what was sent to Redis already, or is not known here.
// 0 for a table without unsent counts. The decision is not valid afterwards.
std::uint64_t give_back(const TableLimit& limit, Micros now, const Process& process);

// Charges a request that turned out to cost more, by `limit.cost`, even if that does not fit; see
// Check::overdraw. False if there is no slot for the client.
bool overdraw(const TableLimit& limit, Micros now, const Process& process);

// Decides the limits for a request that another limit has rejected, and counts the request where rejected
// requests count.
Verdict note_rejection(TableLimit* limits, std::size_t count, Micros now, const Process& process);

}  // namespace rate_limit
