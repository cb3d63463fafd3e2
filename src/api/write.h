// The API calls that change a rate or reset a client, in this instance or on the whole fleet.
#pragma once

#include "api/arguments.h"
#include "nginx/zone.h"

namespace rate_limit {

// Each function answers, at once or after Redis has answered, and returns the result for a content handler.

// Forgets a client.
ngx_int_t api_reset(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments);

// Changes the rate of a zone to the rate in the body of the request.
ngx_int_t api_patch(ngx_http_request_t* r, Zone* zone);

// Restores the configured rate of a zone.
ngx_int_t api_restore(ngx_http_request_t* r, Zone* zone);

}  // namespace rate_limit
