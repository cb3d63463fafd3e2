// The response to a rejected request.
#pragma once

#include "request/request.h"

namespace rate_limit {

// Sends the response. Returns the code that the access handler returns.
ngx_int_t reject(ngx_http_request_t* r, const RequestState& state);

}  // namespace rate_limit
