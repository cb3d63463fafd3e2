// What a limit decides on a request.
#pragma once

#include <cstdint>

#include "core/time.h"

namespace rate_limit {

// The numbers are those of one rate, which binds: of the rates that reject, the one that rejects for longest;
// if none rejects, the one that leaves least.
struct Decision {
    bool allowed;
    std::uint8_t rate;           // index of the rate that binds
    std::uint64_t limit;         // requests
    std::uint64_t remaining;     // requests
    Micros reset_after;          // until the whole quota is back
    Micros retry_after;          // until the request would be admitted; kNever; 0 if it is admitted
    Micros delay;                // leaky_bucket: how long an admitted request is delayed
    std::uint64_t excess_milli;  // 1/1000 requests above the limit, if rejected or delayed
};

}  // namespace rate_limit
