// The API calls check and remaining: decide the limit of a client like that of a request.
#pragma once

#include "endpoints/api_arguments.h"
#include "fleet/fleet_operations.h"
#include "nginx/zone.h"

namespace rate_limit {

// Decides a request of a client and answers, at once or after Redis has answered. Returns the result for a
// content handler.
ngx_int_t api_check(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments);

// The second part of the call remaining: reads the quota that a client has left, charges nothing, and
// answers, at once or after Redis has answered. Returns the result for a content handler.
ngx_int_t api_look(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments, Known known);

}  // namespace rate_limit
