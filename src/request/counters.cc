// Adds decisions to the counters in shared memory, and reads the totals.
#include "request/counters.h"

namespace rate_limit {
namespace {

unsigned stripe() { return static_cast<unsigned>(ngx_worker); }

// nginx's cached time is exact enough, and needs no system call.
Micros about_now() { return static_cast<Micros>(ngx_current_msec) * 1000; }

void count_ended(const RequestCheck& check, bool dry_run) {
    for (const Limit& limit : check) {
        count_limit(limit, check.outcome(), dry_run);
        count_aborted(zone_of(limit));
    }
}

}  // namespace

void count_limit(const Limit& limit, const RequestOutcome& outcome, bool dry_run) {
    ZoneSharedState* shared = zone_of(limit).shared;
    const bool admitted = outcome.progress == Progress::kAdmitted;
    if (limit.reason != kNoReason) {
        shared->statistics.count_reason(stripe(), limit.reason);
    }
    // A rejection is not counted for zones that would have admitted the request.
    if (limit.decided_by == DecidedBy::kNobody || (!admitted && limit.decision.allowed)) {
        return;
    }
    shared->statistics.count_decision(stripe(), limit.decided_by, admitted,
                                      outcome.clock() - outcome.started_at);
    const bool delayed = admitted && limit.decision.delay != 0;
    if (delayed) {
        shared->statistics.count_delay(stripe());
    }
    if (dry_run && (delayed || !admitted)) {
        shared->statistics.count_dry_run(stripe(), !admitted);
    }
    if (!admitted) {
        NameRoom room;
        const std::string_view shown = limit.is_short ? limit.client : shown_name(limit.client, &room);
        shared->top_clients.add(shown, about_now(), this_process());
    }
}

void count_limits(const Limit* limits, std::size_t count, const RequestOutcome& outcome, bool dry_run) {
    for (std::size_t i = 0; i < count; i++) {
        count_limit(limits[i], outcome, dry_run);
    }
}

void count_left(const RequestCheck& check) { count_ended(check, false); }

void count_left_dry_run(const RequestCheck& check) { count_ended(check, true); }

void count_reason(const Zone& zone, Reason reason) { zone.shared->statistics.count_reason(stripe(), reason); }

void count_aborted(const Zone& zone) { zone.shared->statistics.count_aborted(stripe()); }

void count_settled(const Zone& zone, Settled settled) {
    zone.shared->statistics.count_settled(stripe(), settled);
}

void count_bypass(const Zone& zone, Bypass bypass) { zone.shared->statistics.count_bypass(stripe(), bypass); }

void count_shadow(const Zone& zone, std::string_view client, bool live, bool shadow) {
    zone.shared->statistics.count_shadow(stripe(), live, shadow);
    if (live && !shadow) {
        NameRoom room;
        zone.shared->top_clients.add(shown_name(client, &room), about_now(), this_process());
    }
}

ZoneTotals zone_totals(const Zone& zone) { return zone.shared->statistics.read(); }

RedisTotals redis_totals(const RedisServer& server) { return server.shared->statistics.read(); }

unsigned open_breakers(const RedisServer& server) {
    return server.shared->statistics.open_breakers(this_process());
}

bool is_up(const RedisServer& server) {
    constexpr Micros kLately = 3 * kSecond;
    const Micros heard = server.shared->changes.heard();
    return (heard == 0 || this_process().clock() - heard < kLately) && open_breakers(server) == 0;
}

std::vector<TopClient> limited_clients(const Zone& zone, std::size_t most) {
    return zone.shared->top_clients.read(most, about_now(), this_process());
}

bool may_have_reason(const Zone& zone, Reason reason) {
    switch (reason) {
        case kNoReason:
            return false;
        case kNoRate:
            return zone.rate != nullptr;
        case kNoSlot:
            return zone.table != nullptr;
        default:
            return asks_redis(zone);
    }
}

}  // namespace rate_limit
