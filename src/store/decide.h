// The entry point of the store: decides all limits of a request, at once or later.
#pragma once

#include "store/request_check.h"

namespace rate_limit {

// What decide() needs if a request has to wait for Redis. `data` is the last argument of decide(), and the
// `data` of the check.
struct Waiter {
    void* (*allocate)(void* data, std::size_t size);  // memory for a RequestCheck; null if there is none
    void (*done)(RequestCheck* check);                // called once, unless the check is forgotten or left
};

// Decides the limits of a request, at most kMaxLimits and of different zones, and charges all of them or
// none. If the progress is kWaiting, `limits` must live until the check is decided, forgotten or left, and
// `waiter.done` is called with the check, which is in the memory that `waiter` allocated.
RequestOutcome decide(Limit* limits, std::size_t count, const Process& process, Micros (*wall)(),
                      const Waiter& waiter, void* data);

// Like decide(), for one limit that Redis decides.
RequestOutcome decide_remote(Limit* limit, const Process& process, Micros (*wall)(), const Waiter& waiter,
                             void* data);

// For limits in memory of which one found no slot for its client. Returns kRefused if one of the limits has
// on_error=closed, else kAdmitted.
Progress leave_undecided(Limit* limits, std::size_t count);

// Like decide(), for one limit. Inline, because nearly all requests have one limit, and most limits are in
// memory.
[[gnu::always_inline]] inline RequestOutcome decide_one(Limit* limits, const Process& process,
                                                        Micros (*wall)(), const Waiter& waiter, void* data) {
    if (limits->zone->batcher != nullptr) {
        const RequestOutcome outcome = decide_remote(limits, process, wall, waiter, data);
        return {outcome.progress, outcome.error, outcome.started_at, outcome.clock, outcome.check};
    }
    Limit& limit = *limits;
    const Micros now = wall();
    const Verdict verdict = limit.is_single
                                ? check_single(limit.zone->table, *limit.policy, limit.client, limit.cost,
                                               now, process, &limit.decision)
                                : check_by_name(limit.zone->table, *limit.policy, limit.client, limit.cost,
                                                now, process, &limit.decision, limit.is_short);
    limit.decided_by = DecidedBy::kMemory;
    limit.reason = kNoReason;
    limit.decided_at = now;
    limit.charged = verdict == Verdict::kAdmitted;
    const Progress progress = verdict == Verdict::kAdmitted   ? Progress::kAdmitted
                              : verdict == Verdict::kRejected ? Progress::kRejected
                                                              : leave_undecided(limits, 1);
    return {progress, redis::Error::kNone, now, wall, nullptr};
}

}  // namespace rate_limit
