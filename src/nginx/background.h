// What a worker does for its instance beside requests: it tells Redis what was admitted, and that the
// instance is there.
#pragma once

#include "nginx/zone.h"

namespace rate_limit {

// Adds the memory in which an instance remembers how many share a server; false after an error was logged.
bool add_membership(ngx_conf_t* cf, RedisServer* server);

// Starts what a zone needs done in this worker, which does it unless another one does.
bool start_background(Zone* zone);

// Ends all that this process does by a configuration, or what it does for a server.
void stop_background(ngx_cycle_t* cycle);
void stop_background(RedisServer* server);

}  // namespace rate_limit
