// The consequence of a Redis that cannot be asked, for log lines.
#pragma once

#include "nginx/redis.h"

namespace rate_limit {

// Sets the text that log lines have if a server cannot be asked: the consequence for its zones. All zones
// must be resolved.
void describe_consequence(const ngx_http_rate_limit_main_conf_t& conf, RedisServer* server);

}  // namespace rate_limit
