// The response to a request that is rejected, or that fails because its limits cannot be decided.
#pragma once

#include "request/request.h"

namespace rate_limit {

// Each sends the response, and returns the code that the handler returns.
ngx_int_t reject(ngx_http_request_t* r, const RequestState& state);
ngx_int_t answer_unavailable(ngx_http_request_t* r);

}  // namespace rate_limit
