// Limits whose state is in this machine's memory: a request's limits are decided together, all or nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string_view>
#include <type_traits>

#include "core/check.h"
#include "store/host.h"
#include "store/name.h"
#include "store/table.h"

namespace rate_limit {

constexpr std::size_t kMaxLimits = 16;  // that one request may be under

// One of a request's limits.
struct Limit {
    Table* table;
    const Policy* policy;  // has rates, and the table's shape holds it
    std::uint64_t client;  // Table::hash of the client's name, as short_name gives it
    std::uint32_t cost;    // 0 looks
    Decision decision;     // the answer
    // If the table has accounts: the client's name, as short_name gives it, and the rates under which it is
    // to be charged elsewhere, if these are not the policy's.
    std::string_view name = {};
    const RateList* rates = nullptr;
    Micros ahead = 0;  // how far the clock that decides is ahead of the one that tells the time
};

// A limit of a client by its name, which may be long, if it is not said to be short; `room` must live as long
// as the limit.
inline Limit memory_limit(Table* table, const Policy& policy, std::string_view client, std::uint32_t cost,
                          NameRoom* room, bool is_short = false) {
    client = short_name(client, is_short, room);
    Limit limit = {table, &policy, table->hash(client), cost, {}};
    if (table->has_accounts()) {
        limit.name = client;
        limit.ahead = table->accounts().ahead();
    }
    return limit;
}

// A request's limits. Each is made when it is added: to make all that there may be would cost every request.
class Limits {
  public:
    Limit* add(Table* table, const Policy& policy, std::string_view client, std::uint32_t cost,
               bool is_short = false) {
        auto* limit = new (&room_[size_])
            Limit(memory_limit(table, policy, client, cost, &name_rooms_[size_], is_short));
        size_++;
        return limit;
    }

    Limit* data() { return reinterpret_cast<Limit*>(room_); }
    const Limit& operator[](std::size_t index) const { return reinterpret_cast<const Limit*>(room_)[index]; }
    std::size_t size() const { return size_; }

  private:
    std::size_t size_ = 0;
    std::aligned_storage_t<sizeof(Limit), alignof(Limit)> room_[kMaxLimits];
    NameRoom name_rooms_[kMaxLimits];
};

enum class Verdict : std::uint8_t {
    kAdmitted,  // and charged to every limit
    kRejected,  // by at least one; the decisions of the others say what they would have answered
    kBusy,      // nothing was decided or charged: a limit found no slot for its client
};

// Decides and charges. The limits must be of different tables, and no more than kMaxLimits.
Verdict check(Limit* limits, std::size_t count, Micros now, const Host& host);

// The same for a request that is under one limit.
Verdict check_by_name(Table* table, const Policy& policy, std::string_view client, std::uint32_t cost,
                      Micros now, const Host& host, Decision* decision);

// The same where is_single(policy, table->shape()), as most are, in one step.
[[gnu::always_inline]] inline Verdict check_single(Table* table, const Policy& policy,
                                                   std::string_view client, std::uint32_t cost, Micros now,
                                                   const Host& host, Decision* decision) {
    if (cost == 0 || !is_short_name(client)) {
        return check_by_name(table, policy, client, cost, now, host, decision);
    }
    const bool owes = table->has_accounts();
    now += owes ? table->accounts().ahead() : 0;
    table->note_time(now, policy, host);
    const Slot slot = table->acquire(table->hash(client), policy, now, host);
    if (slot.state == nullptr) {
        return Verdict::kBusy;
    }
    settle_single(policy, table->shape(), slot.state, now, cost, decision);
    if (!decision->allowed && slot.fresh) {
        Table::drop(slot, host);
        return Verdict::kRejected;
    }
    if (owes && decision->allowed) {
        table->owe(slot, cost, client, policy.rates);
    }
    Table::keep(slot, host);
    return decision->allowed ? Verdict::kAdmitted : Verdict::kRejected;
}

// Decides as check does, but charges nothing if it admits: the request has to ask elsewhere too.
Verdict precheck(Limit* limits, std::size_t count, Micros now, const Host& host);

// Redis has decided a limit whose table decides while Redis cannot be asked: the table then goes on from what
// Redis has said. `left` is this instance's part of what Redis says is left. False if the table rejects what
// Redis has admitted. That can be only while Redis may not know yet what this and other instances have
// admitted without it: as long as the client owes something, and for kSettling after the last such request
// and after `back_at`, since when Redis has answered (see Membership).
constexpr Micros kSettling = 2 * kSecond;
bool follow_redis(Limit* limit, const Decision& said, std::uint32_t left, Micros back_at, Micros now,
                  const Host& host);

// Gives back what an admitted request was charged, as well as can be: what a table with accounts has sent to
// Redis meanwhile stays charged. The decisions mean nothing afterwards.
void give_back(Limit* limits, std::size_t count, Micros now, const Host& host);

// Decides and notes a request that was rejected elsewhere, where rejected requests count.
Verdict note_refusal(Limit* limits, std::size_t count, Micros now, const Host& host);

}  // namespace rate_limit
