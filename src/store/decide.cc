// Chooses how the limits of a request are decided: in memory, by the deny cache, or by a RequestCheck.
#include "store/decide.h"

#include <algorithm>
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
        return leave_undecided(limits, count, host, now);
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
    const auto counts = [](const Limit& limit) { return limit.policy->count_all; };
    return std::none_of(limits, limits + count, counts) &&
           std::any_of(limits, limits + count,
                       [&](Limit& limit) { return find_denial(&limit, now, decided_at); });
}

}  // namespace

RequestOutcome leave_undecided(Limit* limits, std::size_t count, const Host& host, Micros now) {
    bool closed = false;
    for (std::size_t i = 0; i < count; i++) {
        limits[i].decided_by = DecidedBy::kNobody;
        limits[i].reason = kNoSlot;
        closed = closed || limits[i].zone->on_error == OnError::kClosed;
    }
    return {
        closed ? Progress::kRefused : Progress::kAdmitted, redis::Error::kNone, now, now, host.wall, nullptr};
}

RequestOutcome decide_any(Limit* limits, std::size_t count, const Host& host, const Waiter& waiter) {
    const auto asks_redis = [](const Limit& limit) { return limit.zone->batcher != nullptr; };
    if (std::none_of(limits, limits + count, asks_redis)) {
        return decide_in_memory(limits, count, host);
    }
    for (std::size_t i = 0; i < count; i++) {
        limits[i].decided_by = DecidedBy::kNobody;
        limits[i].reason = kNoReason;
    }
    const Micros now = host.process.clock();
    Micros decided_at = 0;
    if (is_denied(limits, count, now, &decided_at)) {
        return {Progress::kRejected, redis::Error::kNone, decided_at, now, host.process.clock, nullptr};
    }
    void* memory = waiter.allocate(waiter.data, sizeof(RequestCheck));
    if (memory == nullptr) {
        return {Progress::kNoMemory, redis::Error::kNone, 0, now, host.process.clock, nullptr};
    }
    auto* check = new (memory) RequestCheck(limits, count, host.process, host.wall, waiter.done);
    check->data = waiter.data;
    if (check->start() == Progress::kWaiting) {
        return {Progress::kWaiting, redis::Error::kNone, 0, now, host.process.clock, check};
    }
    return check->outcome();
}

}  // namespace rate_limit
