// Chooses how the limits of a request are decided: in memory, by the deny cache, or by a RequestCheck.
#include "store/decide.h"

#include <algorithm>
#include <new>

#include "store/deny_cache.h"
#include "store/take_lease.h"

namespace rate_limit {
namespace {

RequestOutcome decide_in_memory(Limit* limits, std::size_t count, const Process& process, Micros (*wall)()) {
    TableLimits tables;
    for (std::size_t i = 0; i < count; i++) {
        const Limit& limit = limits[i];
        tables.add(limit.zone->table, *limit.policy, limit.client, limit.cost, limit.is_short);
    }
    const Micros now = wall();
    const Verdict verdict = check(tables.data(), count, now, process);
    if (verdict == Verdict::kBusy) {
        return {leave_undecided(limits, count), redis::Error::kNone, now, wall, nullptr};
    }
    for (std::size_t i = 0; i < count; i++) {
        limits[i].decided_by = DecidedBy::kMemory;
        limits[i].reason = kNoReason;
        limits[i].decision = tables[i].decision;
        limits[i].decided_at = now;
        limits[i].charged = verdict == Verdict::kAdmitted;
    }
    return {verdict == Verdict::kRejected ? Progress::kRejected : Progress::kAdmitted, redis::Error::kNone,
            now, wall, nullptr};
}

// Whether Redis decides one of the limits.
bool has_remote(const Limit* limits, std::size_t count) {
    return std::any_of(limits, limits + count,
                       [](const Limit& limit) { return limit.zone->batcher != nullptr; });
}

// Whether the deny cache rejects one of the limits. If rejected requests count for any limit, the cache is
// not used: the request has to reach all limits.
bool is_denied(Limit* limits, std::size_t count, Micros now) {
    bool counts = false;
    for (std::size_t i = 0; i < count; i++) {
        limits[i].decided_by = DecidedBy::kNobody;
        limits[i].reason = kNoReason;
        limits[i].charged = false;
        counts = counts || limits[i].policy->count_all;
    }
    for (std::size_t i = 0; i < count && !counts; i++) {
        if (find_denial(&limits[i], now)) {
            return true;
        }
    }
    return false;
}

// Starts a RequestCheck, after the deny cache has rejected none of the limits.
[[gnu::noinline]] RequestOutcome start_check(Limit* limits, std::size_t count, Micros now,
                                             const Process& process, Micros (*wall)(), const Waiter& waiter,
                                             void* data) {
    RequestOutcome outcome = {Progress::kNoMemory, redis::Error::kNone, now, process.clock, nullptr};
    void* memory = waiter.allocate(data, sizeof(RequestCheck));
    if (memory == nullptr) {
        return outcome;
    }
    auto* check = new (memory) RequestCheck(limits, count, process, wall, waiter.done);
    check->data = data;
    if (check->start() != Progress::kWaiting) {
        return check->outcome();
    }
    outcome.progress = Progress::kWaiting;
    outcome.check = check;
    return outcome;
}

}  // namespace

Progress leave_undecided(Limit* limits, std::size_t count) {
    bool closed = false;
    for (std::size_t i = 0; i < count; i++) {
        limits[i].decided_by = DecidedBy::kNobody;
        limits[i].reason = kNoSlot;
        limits[i].charged = false;
        closed = closed || limits[i].zone->on_error == OnError::kClosed;
    }
    return closed ? Progress::kRefused : Progress::kAdmitted;
}

RequestOutcome decide_remote(Limit* limit, const Process& process, Micros (*wall)(), const Waiter& waiter,
                             void* data) {
    const Micros now = process.clock();
    limit->decided_by = DecidedBy::kNobody;
    limit->reason = kNoReason;
    limit->charged = false;
    if (find_denial(limit, now)) {
        return {Progress::kRejected, redis::Error::kNone, now, process.clock, nullptr};
    }
    if (limit->zone->lender != nullptr) {
        const LeaseUse use = take_lease(limit, now, process);
        if (use != LeaseUse::kNone) {
            return {use == LeaseUse::kTaken ? Progress::kAdmitted : Progress::kRejected, redis::Error::kNone,
                    now, process.clock, nullptr};
        }
    }
    return start_check(limit, 1, now, process, wall, waiter, data);
}

RequestOutcome decide(Limit* limits, std::size_t count, const Process& process, Micros (*wall)(),
                      const Waiter& waiter, void* data) {
    if (!has_remote(limits, count)) {
        return decide_in_memory(limits, count, process, wall);
    }
    if (count == 1) {
        return decide_remote(limits, process, wall, waiter, data);
    }
    const Micros now = process.clock();
    if (is_denied(limits, count, now)) {
        return {Progress::kRejected, redis::Error::kNone, now, process.clock, nullptr};
    }
    return start_check(limits, count, now, process, wall, waiter, data);
}

}  // namespace rate_limit
