// Checks of rate_limit_redis that need the whole configuration.
#pragma once

#include "configuration/configuration.h"

namespace rate_limit {

// Warns of hosts of a Redis that have no address now. False, after an error was logged, if no host has an
// address and every zone that uses the Redis fails closed: nginx would answer each of their requests with an
// error.
bool check_redis_hosts(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf,
                       const RedisServer& server);

}  // namespace rate_limit
