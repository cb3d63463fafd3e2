// The worker's clock.
#pragma once

#include "core/time.h"
#include "nginx/ngx.h"

namespace rate_limit {

// Time of day as nginx last read it, which it does once a turn of its event loop.
inline Micros wall_clock() {
    const ngx_time_t* now = ngx_timeofday();
    return static_cast<Micros>(now->sec) * kSecond + static_cast<Micros>(now->msec) * 1000;
}

// Seconds for people and headers: rounded up, so that whoever waits as told is admitted.
inline Micros seconds_up(Micros micros) { return (micros + kSecond - 1) / kSecond; }

}  // namespace rate_limit
