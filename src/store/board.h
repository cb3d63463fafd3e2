// What the processes of an instance know together of a zone, or of a Redis, beside what clients have used.
#pragma once

#include "store/hitters.h"
#include "store/instances.h"
#include "store/live_rate.h"
#include "store/rates.h"
#include "store/reminder.h"
#include "store/statistics.h"

namespace rate_limit {

// Both are made in memory that is all zero, and kept when the configuration is read anew.
struct ZoneBoard {
    ZoneStatistics statistics;
    LiveRate live;
    Hitters hitters;
    Reminder bad_cost;  // of cost=$variable
};

struct RedisBoard {
    explicit RedisBoard(std::uint64_t instance) : membership(instance) {}

    Membership membership;
    Following following;
    RedisStatistics statistics;
};

}  // namespace rate_limit
