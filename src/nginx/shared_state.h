// The memory of boards: beside that of zones, since a zone's is all for its clients.
#pragma once

#include "nginx/zone.h"

namespace rate_limit {

// Tells this nginx from all others; false if the system has no random numbers. The same in all workers, once
// it was asked for while the configuration is read.
bool read_instance_id(std::uint64_t* id);

// Adds the board of a zone, or of a server, to the configuration that is being read; false after an error was
// logged.
bool add_shared_state(ngx_conf_t* cf, Zone* zone);
bool add_shared_state(ngx_conf_t* cf, RedisServer* server);

}  // namespace rate_limit
