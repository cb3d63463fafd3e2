// Refunds limits in memory at once, and limits in Redis in one group for each server and slot.
#include "store/refund.h"

#include <algorithm>

#include "store/check_batcher.h"
#include "store/deny_cache.h"

namespace rate_limit {
namespace {

// Whether a limit is charged, and the charge still counts in full.
bool is_due(const Limit& limit, const Process& process, Micros now) {
    if (!limit.charged) {
        return false;
    }
    // Redis's clock is not comparable with the time of day here. If the time of day was set back, it is not
    // known how much time has passed.
    const Micros passed =
        limit.decided_by == DecidedBy::kRedis ? process.clock() - limit.charged_at : now - limit.decided_at;
    return passed >= 0 && is_refundable(*limit.policy, limit.cost, limit.decision, limit.decided_at, passed);
}

void refund_in_memory(const Limit& limit, Micros now, const Process& process) {
    NameRoom name;
    PolicyRoom part;
    TableLimit own =
        memory_limit(limit.zone->table, *limit.policy, limit.client, limit.cost, &name, limit.is_short);
    if (limit.zone->batcher != nullptr) {
        make_fallback(limit, &part, &own);
    }
    give_back(&own, 1, now, process);
}

void mark_refunded(Limit* limit) {
    Decision& decision = limit->decision;
    const std::uint64_t remaining = std::uint64_t{decision.remaining} + limit->cost;
    decision.remaining = static_cast<std::uint32_t>(std::min<std::uint64_t>(remaining, decision.limit));
    limit->charged = false;
}

// Refunds at most kMaxLimits limits in Redis, all of which are due.
void refund_in_redis(Limit* limits, std::uint8_t* due, std::size_t count) {
    while (count != 0) {
        CheckBatcher* batcher = limits[due[0]].zone->batcher;
        const redis::Slot slot = batcher->slot_of(limits[due[0]]);
        std::uint8_t* const end = due + count;
        std::uint8_t* const rest = std::partition(due, end, [&](std::uint8_t i) {
            return limits[i].zone->batcher == batcher && batcher->slot_of(limits[i]) == slot;
        });
        batcher->give_back(limits, due, static_cast<std::size_t>(rest - due));
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
        if (!is_due(limit, process, now)) {
            continue;
        }
        if (limit.decided_by == DecidedBy::kRedis) {
            remote[remotes++] = static_cast<std::uint8_t>(i);
            forget_denial(limit);
        } else {
            refund_in_memory(limit, now, process);
        }
        mark_refunded(&limit);
    }
    refund_in_redis(limits, remote, remotes);
}

}  // namespace

void refund(Limit* limits, std::size_t count, const Process& process, Micros (*wall)()) {
    const Micros now = wall();
    for (std::size_t i = 0; i < count; i += kMaxLimits) {
        refund_some(limits + i, std::min(kMaxLimits, count - i), process, now);
    }
}

}  // namespace rate_limit
