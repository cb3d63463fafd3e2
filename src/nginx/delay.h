// Requests that wait for their turn, as limit_req delays them.
#pragma once

#include "nginx/request.h"

namespace rate_limit {

// Delays an admitted request; the handler that runs next lets it pass. Returns what an access handler
// returns. A client that leaves meanwhile ends the request, which stays charged.
ngx_int_t delay_request(ngx_http_request_t* r, Micros delay, RequestState* state);

}  // namespace rate_limit
