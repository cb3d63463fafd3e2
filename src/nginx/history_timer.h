// Records the history of zones and servers, if a location of the configuration shows it.
#pragma once

#include "nginx/zone.h"

namespace rate_limit {

// Starts this worker's timer, which records the history of all zones and servers once a second, unless
// another worker has done so. Does nothing if no location shows the history.
void start_history(ngx_http_rate_limit_main_conf_t* conf);

// Stops the timer. Does nothing if there is none, or no configuration.
void stop_history(ngx_http_rate_limit_main_conf_t* conf);

// The history of a zone or of a server. The times are by the time of day, as far as this machine's clock has
// not been set.
std::vector<ZoneHistory::Moment> zone_history(const Zone& zone);
std::vector<RedisHistory::Moment> redis_history(const RedisServer& server);

}  // namespace rate_limit
