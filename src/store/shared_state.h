// What the processes of an instance share about a zone or a Redis, except for the states of clients.
#pragma once

#include "fleet/fleet_changes.h"
#include "fleet/heartbeat.h"
#include "memory/live_rate.h"
#include "statistics/empty_keys.h"
#include "statistics/reminder.h"
#include "statistics/statistics.h"
#include "statistics/top_clients.h"
#include "store/redis_statistics.h"

namespace rate_limit {

// Both are created in memory that is all zero, and survive a reload.
struct ZoneSharedState {
    ZoneStatistics statistics;
    LiveRate live;
    TopClients top_clients;
    Reminder bad_cost;     // when a bad value of cost=$variable was last logged
    Reminder bad_rate;     // the same of rate=$variable
    Reminder bad_settle;   // the same of settle=$variable
    EmptyKeys empty_keys;  // of the first requests since the start or the last reload
    ZoneHistory history;
};

struct RedisSharedState {
    explicit RedisSharedState(std::uint64_t instance) : membership(instance) {}

    RedisStatistics statistics;
    Membership membership;
    FleetChangesState changes;
    RedisHistory history;
};

}  // namespace rate_limit
