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

// Time of day. Not nginx's own, which is as old as the turn of the event loop: a busy worker's would lag
// behind what other workers have written.
inline Micros wall_clock() { return read_clock(CLOCK_REALTIME); }

// Seconds for people and headers: rounded up, so that whoever waits as told is admitted.
inline Micros seconds_up(Micros micros) { return (micros + kSecond - 1) / kSecond; }

}  // namespace rate_limit
