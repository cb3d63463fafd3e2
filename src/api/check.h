// The API calls check and remaining: decide the limit of a client like that of a request.
#pragma once

#include "api/arguments.h"
#include "nginx/zone.h"

namespace rate_limit {

// Decides a request of a client and answers, at once or after Redis has answered. Returns the result for a
// content handler.
ngx_int_t api_check(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments);

// The call remaining: reads the quota that a client has left and whether the client is known, charges
// nothing, and answers, at once or after Redis has answered. Returns the result for a content handler.
ngx_int_t api_remaining(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments);

}  // namespace rate_limit
