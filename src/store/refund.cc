// Refunds limits in memory at once, and limits in Redis in one group for each server and slot.
#include "store/refund.h"

#include <algorithm>

#include "store/check_batcher.h"
#include "store/deny_cache.h"
#include "store/take_lease.h"

namespace rate_limit {
namespace {

// Whether a charge is given back. Rejected requests that count stay charged.
bool is_due(const Limit& limit) { return limit.charged && limit.cost != 0 && !limit.policy->count_all; }

// Passes a table's limit of `amount` to `correct`.
template <class Correct>
auto correct_in_memory(const Limit& limit, std::uint64_t amount, Correct correct) {
    NameRoom name;
    PolicyRoom part;
    TableLimit own =
        memory_limit(limit.zone->table, *limit.policy, limit.client, amount, &name, limit.is_short);
    if (limit.zone->batcher != nullptr) {
        make_fallback(limit, &part, &own);
    }
    return correct(own);
}

// Gives `amount` of a charge back to a table. If a sync call has told Redis of the charge, Redis gives it
// back. False if Redis should, but is not available.
bool give_back_in_memory(const Limit& limit, std::uint64_t amount, bool whole, Micros now,
                         const Process& process) {
    const std::uint64_t sent = correct_in_memory(limit, amount, [&](const TableLimit& own) {
        return undo(own, {limit.cost, limit.decided_at}, whole, now, process);
    });
    if (sent == 0) {
        return true;
    }
    CheckBatcher* redis = limit.zone->batcher != nullptr ? limit.zone->batcher : limit.zone->corrector;
    const Micros charged_at = limit.decided_at + limit.zone->table->unsent_counts().ahead();
    return redis != nullptr && redis->give_back(limit, sent, charged_at, whole);
}

void mark_refunded(Limit* limit) {
    Decision& decision = limit->decision;
    decision.remaining = std::min(decision.remaining + limit->cost, decision.limit);
    limit->charged = false;
}

// Refunds at most kMaxLimits limits in Redis, all of which are due.
void refund_in_redis(Limit* limits, std::uint8_t* due, std::size_t count) {
    while (count != 0) {
        CheckBatcher* batcher = limits[due[0]].zone->batcher;
        const redis::HashSlot slot = batcher->hash_slot_of(limits[due[0]]);
        std::uint8_t* const end = due + count;
        std::uint8_t* const rest = std::partition(due, end, [&](std::uint8_t i) {
            return limits[i].zone->batcher == batcher && batcher->hash_slot_of(limits[i]) == slot;
        });
        batcher->undo(limits, due, static_cast<std::size_t>(rest - due));
        count = static_cast<std::size_t>(end - rest);
        due = rest;
    }
}

// refund() for at most kMaxLimits limits.
void refund_some(Limit* limits, std::size_t count, const Process& process, Micros now) {
    std::uint8_t remote[kMaxLimits];
    std::size_t remotes = 0;
    for (std::size_t i = 0; i < count; i++) {
        Limit& limit = limits[i];
        if (!is_due(limit)) {
            continue;
        }
        if (limit.decided_by == DecidedBy::kLease) {
            // Units of a bucket that have ended have drained from Redis, or will.
            if (!return_to_lease(limit, limit.cost, process) && !is_bucket(limit.policy->algorithm)) {
                remote[remotes++] = static_cast<std::uint8_t>(i);
            }
            forget_denial(limit);
        } else if (limit.decided_by == DecidedBy::kRedis) {
            remote[remotes++] = static_cast<std::uint8_t>(i);
            forget_denial(limit);
        } else {
            give_back_in_memory(limit, limit.cost, true, now, process);
        }
        mark_refunded(&limit);
    }
    refund_in_redis(limits, remote, remotes);
}

bool overdraw_in_memory(const Limit& limit, std::uint64_t amount, Micros now, const Process& process) {
    return limit.zone->table != nullptr && correct_in_memory(limit, amount, [&](const TableLimit& own) {
               return overdraw(own, now, process);
           });
}

}  // namespace

bool settle(Limit* limit, std::uint64_t actual, const Process& process, Micros (*wall)()) {
    const std::uint64_t cost = limit->cost;
    const bool charged = limit->charged;
    limit->charged = false;
    if (!charged || actual == cost) {
        return true;
    }
    const bool leased = limit->decided_by == DecidedBy::kLease;
    if (leased && actual < cost && return_to_lease(*limit, cost - actual, process)) {
        return true;
    }
    if (!leased && limit->decided_by != DecidedBy::kRedis) {
        return actual < cost ? give_back_in_memory(*limit, cost - actual, false, wall(), process)
                             : overdraw_in_memory(*limit, actual - cost, wall(), process);
    }
    if (actual < cost) {
        forget_denial(*limit);
    }
    CheckBatcher* redis = limit->zone->batcher;
    const auto fall_back = [&] {
        return actual > cost && overdraw_in_memory(*limit, actual - cost, wall(), process);
    };
    // A call that waits for a connection may be lost. The fallback sends its charges until Redis has them.
    return (!redis->connected(redis->hash_slot_of(*limit)) && fall_back()) || redis->settle(*limit, actual) ||
           fall_back();
}

bool charge_here(const Limit& limit, const Process& process, Micros (*wall)()) {
    return overdraw_in_memory(limit, limit.cost, wall(), process);
}

std::uint64_t give_back_here(const Limit& limit, const Process& process, Micros (*wall)()) {
    return correct_in_memory(limit, limit.cost,
                             [&](const TableLimit& own) { return give_back(own, wall(), process); });
}

void follow_here(const Limit& limit, const Decision& said, const Process& process, Micros (*wall)()) {
    correct_in_memory(limit, limit.cost, [&](TableLimit& own) {
        // The next reply to a sync call is more accurate than what Redis said before it had all counts.
        const Slot slot = own.table->find(own.client, process);
        const bool sent = slot.state == nullptr || own.table->unsent_of(slot).total() == 0;
        if (slot.state != nullptr) {
            Table::keep(slot, process);
        }
        return sent && follow_redis(&own, said, said.remaining, 0, wall() + own.ahead, process);
    });
}

void refund(Limit* limits, std::size_t count, const Process& process, Micros (*wall)()) {
    const Micros now = wall();
    for (std::size_t i = 0; i < count; i += kMaxLimits) {
        refund_some(limits + i, std::min(kMaxLimits, count - i), process, now);
    }
}

}  // namespace rate_limit
