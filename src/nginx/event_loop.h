// nginx's event loop as the Redis client sees it.
#pragma once

#include "redis/loop.h"

namespace rate_limit {

// This process' loop.
redis::Loop* nginx_loop();

// Runs the timers, tasks and sockets of nginx_loop(), and nothing else of nginx, while `busy` is true, for
// `most` at the longest. For a worker that does not serve yet.
void run_nginx_loop(redis::Milliseconds most, bool (*busy)(void* self), void* self);

}  // namespace rate_limit
