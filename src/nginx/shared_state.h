// Shared memory for the shared state of zones and servers. It is separate from the memory of a zone, which is
// only for clients.
#pragma once

#include "nginx/zone.h"

namespace rate_limit {

// A random number that identifies this instance; false if the system has no random numbers. All workers get
// the same number if the master calls this function while it reads the configuration.
bool read_instance_id(std::uint64_t* id);

// Adds the shared state of a zone or of a server to the configuration that is being read; false after an
// error was logged.
bool add_shared_state(ngx_conf_t* cf, Zone* zone);
bool add_shared_state(ngx_conf_t* cf, RedisServer* server);

// The same for the counters of bodies, once for a configuration.
bool add_body_statistics(ngx_conf_t* cf, ngx_http_rate_limit_main_conf_t* conf);

}  // namespace rate_limit
