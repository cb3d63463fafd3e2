// nginx's event loop, as the Redis client uses it.
#pragma once

#include "connection/loop.h"

namespace rate_limit {

// The loop of this process.
redis::Loop* nginx_loop();

// Runs the timers, tasks and sockets of nginx_loop(), and nothing else of nginx, while `busy` returns true,
// for at most `most`. For a worker that does not serve requests yet.
void run_nginx_loop(redis::Milliseconds most, bool (*busy)(void* self), void* self);

}  // namespace rate_limit
