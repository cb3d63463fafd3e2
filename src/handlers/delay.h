// Delays requests, as limit_req does.
#pragma once

#include "request/request.h"

namespace rate_limit {

// Delays an admitted request; the next run of the handler lets the request pass. Returns the result for the
// handler. If the client closes the connection during the delay, the request ends and stays
// charged.
ngx_int_t delay_request(ngx_http_request_t* r, Micros delay, RequestState* state);

}  // namespace rate_limit
