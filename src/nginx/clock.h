// The worker's clock.
#pragma once

#include <time.h>

#include "core/time.h"
#include "nginx/ngx.h"

namespace rate_limit {

inline Micros read_clock(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return static_cast<Micros>(now.tv_sec) * kSecond + static_cast<std::uint32_t>(now.tv_nsec) / 1000;
}

// Time of day. nginx's cached time is as old as the current turn of the event loop: in a busy worker, the
// cached time would be behind times that other workers have written.
inline Micros wall_clock() { return read_clock(CLOCK_REALTIME); }

// Seconds for headers and messages, rounded up, so that a client that waits so long is admitted.
inline Micros seconds_up(Micros micros) { return (micros + kSecond - 1) / kSecond; }

}  // namespace rate_limit
