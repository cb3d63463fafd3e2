// Puts decisions into the boards of zones, and reads what is there.
#include "nginx/report.h"

namespace rate_limit {
namespace {

unsigned stripe() { return static_cast<unsigned>(ngx_worker); }

// nginx's own time is exact enough, and costs nothing.
Micros about_now() { return static_cast<Micros>(ngx_current_msec) * 1000; }

}  // namespace

void count_limit(const CountedLimit& limit, bool admitted, bool dry_run, Micros took) {
    ZoneBoard* board = limit.zone->board;
    if (limit.reason != kNoReason) {
        board->statistics.count_reason(stripe(), limit.reason);
    }
    // A zone that would have admitted what another has rejected has no part in that.
    if (limit.source == Source::kNobody || (!admitted && limit.decision->allowed)) {
        return;
    }
    board->statistics.count_decision(stripe(), limit.source, admitted, took);
    const bool delayed = admitted && limit.decision->delay != 0;
    if (delayed) {
        board->statistics.count_delay(stripe());
    }
    if (dry_run && (delayed || !admitted)) {
        board->statistics.count_dry_run(stripe(), !admitted);
    }
    if (!admitted) {
        NameRoom room;
        const std::string_view shown = limit.is_shown ? limit.client : shown_name(limit.client, &room);
        board->hitters.add(shown, about_now(), zone_host());
    }
}

void count_reason(const Zone& zone, Reason reason) { zone.board->statistics.count_reason(stripe(), reason); }

void count_aborted(const Zone& zone) { zone.board->statistics.count_aborted(stripe()); }

void count_bypass(const Zone& zone, Bypass bypass) { zone.board->statistics.count_bypass(stripe(), bypass); }

void count_shadow(const Zone& zone, std::string_view client, bool live, bool candidate) {
    zone.board->statistics.count_shadow(stripe(), live, candidate);
    if (live && !candidate) {
        NameRoom room;
        zone.board->hitters.add(shown_name(client, &room), about_now(), zone_host());
    }
}

ZoneTotals zone_totals(const Zone& zone) { return zone.board->statistics.read(); }

RedisTotals redis_totals(const RedisServer& server) { return server.board->statistics.read(); }

unsigned open_breakers(const RedisServer& server) {
    return server.board->statistics.open_breakers(zone_host());
}

bool is_up(const RedisServer& server) {
    constexpr Micros kLately = 3 * kSecond;
    const Micros heard = server.board->following.heard();
    return (heard == 0 || zone_host().clock() - heard < kLately) && open_breakers(server) == 0;
}

std::vector<Hitter> limited_clients(const Zone& zone, std::size_t most) {
    return zone.board->hitters.read(most, about_now(), zone_host());
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
