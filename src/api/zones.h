// The JSON of the API calls zones, history and health.
#pragma once

#include "identity/claims.h"
#include "nginx/zone.h"

namespace rate_limit {

// Describes all zones, or one zone with the clients that it limits most. Empty if memory is exhausted.
identity::Json describe_zones(ngx_http_request_t* r);
identity::Json describe_zone(ngx_http_request_t* r, Zone* zone);

// Describes the counters of zones and servers over the last two minutes, second by second. Empty if memory is
// exhausted.
identity::Json describe_history(ngx_http_request_t* r);

// Describes whether each Redis that a zone uses answers. Sets `*healthy` to false if zones that fail closed
// refuse requests because a Redis does not answer, else to true.
identity::Json describe_health(ngx_http_request_t* r, bool* healthy);

}  // namespace rate_limit
