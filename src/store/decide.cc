// Chooses how the limits of a request are decided: in memory, by the deny cache, or by a RequestCheck.
#include "store/decide.h"

#include <new>

#include "store/deny_cache.h"

namespace rate_limit {
namespace {

RequestOutcome decide_in_memory(Limit* limits, std::size_t count, const Host& host) {
    TableLimits tables;
    for (std::size_t i = 0; i < count; i++) {
        const Limit& limit = limits[i];
        tables.add(limit.zone->table, *limit.policy, limit.client, limit.cost, limit.is_short);
    }
    const Micros now = host.wall();
    const Verdict verdict = check(tables.data(), count, now, host.process);
    if (verdict == Verdict::kBusy) {
        return {leave_undecided(limits, count), redis::Error::kNone, now, now, host.wall, nullptr};
    }
    for (std::size_t i = 0; i < count; i++) {
        limits[i].decided_by = DecidedBy::kMemory;
        limits[i].reason = kNoReason;
        limits[i].decision = tables[i].decision;
    }
    return {verdict == Verdict::kRejected ? Progress::kRejected : Progress::kAdmitted,
            redis::Error::kNone,
            now,
            now,
            host.wall,
            nullptr};
}

// Whether the deny cache rejects one of the limits. Where rejected requests count for one of them, all limits
// have to be asked.
bool is_denied(Limit* limits, std::size_t count, Micros now, Micros* decided_at) {
    bool counts = false;
    for (std::size_t i = 0; i < count; i++) {
        limits[i].decided_by = DecidedBy::kNobody;
        limits[i].reason = kNoReason;
        counts = counts || limits[i].policy->count_all;
    }
    for (std::size_t i = 0; i < count && !counts; i++) {
        if (find_denial(&limits[i], now, decided_at)) {
            return true;
        }
    }
    return false;
}

}  // namespace

Progress leave_undecided(Limit* limits, std::size_t count) {
    bool closed = false;
    for (std::size_t i = 0; i < count; i++) {
        limits[i].decided_by = DecidedBy::kNobody;
        limits[i].reason = kNoSlot;
        closed = closed || limits[i].zone->on_error == OnError::kClosed;
    }
    return closed ? Progress::kRefused : Progress::kAdmitted;
}

RequestOutcome decide(Limit* limits, std::size_t count, const Host& host, const Waiter& waiter) {
    std::size_t first = 0;
    while (first < count && limits[first].zone->batcher == nullptr) {
        first++;
    }
    if (first == count) {
        return decide_in_memory(limits, count, host);
    }
    const Micros now = host.process.clock();
    RequestOutcome outcome = {Progress::kRejected, redis::Error::kNone, 0, now, host.process.clock, nullptr};
    if (is_denied(limits, count, now, &outcome.decided_at)) {
        return outcome;
    }
    void* memory = waiter.allocate(waiter.data, sizeof(RequestCheck));
    if (memory == nullptr) {
        outcome.progress = Progress::kNoMemory;
        return outcome;
    }
    auto* check = new (memory) RequestCheck(limits, count, host.process, host.wall, waiter.done);
    check->data = waiter.data;
    if (check->start() != Progress::kWaiting) {
        return check->outcome();
    }
    outcome.progress = Progress::kWaiting;
    outcome.check = check;
    return outcome;
}

}  // namespace rate_limit
