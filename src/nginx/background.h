// The background tasks of a worker: sync, heartbeat and fleet changes.
#pragma once

#include "fleet/fleet_zone.h"
#include "nginx/zone.h"

namespace rate_limit {

// Starts the background tasks of a zone; one elected worker runs them.
void start_background(Zone* zone);

// Starts the background tasks of all zones and servers; false if nginx has no connection left.
bool start_background(ngx_http_rate_limit_main_conf_t* conf);

// This worker's router to a server for background tasks and API calls.
redis::Router* background_router(RedisServer* server);

// A zone as the fleet's operations need it. The zone has its memory.
FleetZone fleet_zone(const Zone& zone);

// Stops the background tasks of all servers of a configuration, or those of one server.
void stop_background(ngx_cycle_t* cycle);
void stop_background(RedisServer* server);

}  // namespace rate_limit
