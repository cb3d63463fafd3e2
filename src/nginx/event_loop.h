// nginx's event loop as the Redis client sees it.
#pragma once

#include "redis/loop.h"

namespace rate_limit {

// This process' loop.
redis::Loop* nginx_loop();

}  // namespace rate_limit
