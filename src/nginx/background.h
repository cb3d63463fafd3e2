// What a worker does for its instance beside requests: it tells Redis what was admitted, and that the
// instance is there, and asks which rates were changed.
#pragma once

#include "nginx/zone.h"

namespace rate_limit {

// Starts what a zone needs done in this worker, which does it unless another one does.
bool start_background(Zone* zone);

// Starts the background tasks of all zones and servers; false if memory is exhausted.
bool start_background(ngx_http_rate_limit_main_conf_t* conf);

// This worker's way to a server for what no request waits for long; null if there is no memory.
redis::Router* background_router(RedisServer* server);

// Ends all that this process does by a configuration, or what it does for a server.
void stop_background(ngx_cycle_t* cycle);
void stop_background(RedisServer* server);

}  // namespace rate_limit
