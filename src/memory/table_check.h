// Limits whose state is in this machine's memory: a request's limits are decided together, all or
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string_view>
#include <type_traits>

#include "core/check.h"
#include "core/client_name.h"
#include "memory/process.h"
#include "memory/table.h"

namespace rate_limit {

// One of a request's limits.
struct TableLimit {
    Table* table;
    const Policy* policy;  // has rates, and the table's layout holds it
    std::uint64_t client;  // Table::hash of the client's name, as short_name gives it
    std::uint32_t cost;    // 0 looks
    Decision decision;     // the answer
    // If the table has unsent counts: the client's name, as short_name gives it, and the rates under which it
    // is to be charged elsewhere, if these are not the policy's.
    std::string_view name = {};
    const RateList* rates = nullptr;
    Micros ahead = 0;  // how far the clock that decides is ahead of the one that tells the time
};

// A limit of a client by its name, which may be long, if it is not said to be short; `room` must live as long
// as the limit.
inline TableLimit memory_limit(Table* table, const Policy& policy, std::string_view client,
                               std::uint32_t cost, NameRoom* room, bool is_short = false) {
    client = short_name(client, is_short, room);
    TableLimit limit = {table, &policy, table->hash(client), cost, {}};
    if (table->has_unsent_counts()) {
        limit.name = client;
        limit.ahead = table->unsent_counts().ahead();
    }
    return limit;
}

// A request's limits. Each is made when it is added: to make all that there may be would cost every request.
class TableLimits {
  public:
    TableLimit* add(Table* table, const Policy& policy, std::string_view client, std::uint32_t cost,
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
    kAdmitted,  // and charged to every limit
    kRejected,  // by at least one; the decisions of the others say what they would have answered
    kBusy,      // nothing was decided or charged: a limit found no slot for its client
};

// Decides and charges. The limits must be of different tables, and no more than kMaxLimits.
Verdict check(TableLimit* limits, std::size_t count, Micros now, const Process& process);

// The same for a request that is under one limit.
Verdict check_by_name(Table* table, const Policy& policy, std::string_view client, std::uint32_t cost,
                      Micros now, const Process& process, Decision* decision, bool is_short = false);

// The same where is_single(policy, table->layout()), as most are, in one step.
[[gnu::always_inline]] inline Verdict check_single(Table* table, const Policy& policy,
                                                   std::string_view client, std::uint32_t cost, Micros now,
                                                   const Process& process, Decision* decision) {
    if (cost == 0 || !is_short_name(client)) {
        return check_by_name(table, policy, client, cost, now, process, decision);
    }
    const bool owes = table->has_unsent_counts();
    now += owes ? table->unsent_counts().ahead() : 0;
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
    if (owes && decision->allowed) {
        table->add_unsent(slot, cost, client, policy.rates);
    }
    Table::keep(slot, process);
    return decision->allowed ? Verdict::kAdmitted : Verdict::kRejected;
}

// Decides as check does, but charges nothing if it admits: the request has to ask elsewhere too.
Verdict precheck(TableLimit* limits, std::size_t count, Micros now, const Process& process);

// Redis has decided a limit whose table decides while Redis cannot be asked: the table then goes on from what
// Redis has said. `left` is this instance's part of what Redis says is left. False if the table rejects what
// Redis has admitted. That can be only while Redis may not know yet what this and other instances have
// admitted without it: as long as the client owes something, and for kSettling after the last such request
// and after `back_at`, since when Redis has answered (see Membership).
constexpr Micros kSettling = 2 * kSecond;
bool follow_redis(TableLimit* limit, const Decision& said, std::uint32_t left, Micros back_at, Micros now,
                  const Process& process);

// Gives back what an admitted request was charged, as well as can be: what a table with unsent counts has
// sent to Redis meanwhile stays charged. The decisions mean nothing afterwards.
void give_back(TableLimit* limits, std::size_t count, Micros now, const Process& process);

// Decides and notes a request that was rejected elsewhere, where rejected requests count.
Verdict note_refusal(TableLimit* limits, std::size_t count, Micros now, const Process& process);

}  // namespace rate_limit
