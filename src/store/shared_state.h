// What the processes of an instance know together of a zone, or of a Redis, beside what clients have used.
#pragma once

#include "memory/live_rate.h"
#include "memory/reminder.h"
#include "memory/statistics.h"
#include "memory/top_clients.h"
#include "store/fleet_changes.h"
#include "store/heartbeat.h"
#include "store/redis_statistics.h"

namespace rate_limit {

// Both are made in memory that is all zero, and kept when the configuration is read anew.
struct ZoneSharedState {
    ZoneStatistics statistics;
    LiveRate live;
    TopClients top_clients;
    Reminder bad_cost;  // of cost=$variable
};

struct RedisSharedState {
    explicit RedisSharedState(std::uint64_t instance) : membership(instance) {}

    Membership membership;
    FleetChangesState changes;
    RedisStatistics statistics;
};

}  // namespace rate_limit
