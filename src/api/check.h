// The API calls check and remaining: decide the limit of a client like that of a request.
#pragma once

#include "api/arguments.h"
#include "fleet/fleet_operations.h"
#include "nginx/zone.h"

namespace rate_limit {

// Decides a request of a client and answers, at once or after Redis has answered. Returns the result for a
// content handler.
ngx_int_t api_check(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments);

// The call remaining: reads the quota that a client has left and whether the client is known, charges
// nothing, and answers, at once or after Redis has answered. Returns the result for a content handler.
ngx_int_t api_remaining(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments);

// For calls that have changed what a client has used. Both answer like the call remaining.

// Reads the quota, and answers, at once or after Redis has answered.
ngx_int_t answer_remaining(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments, Known known);

// Answers with `decision`, which Redis has made at `time` on a request of cost 0 under `rates`.
ngx_int_t answer_decided(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments,
                         const RateList& rates, const Decision& decision, Micros time, Known known);

// The rates of a client, if they are known without its requests; else null.
const RateList* known_rates(Zone* zone, const ApiArguments& arguments);

// The first part of a call: finds out whether a client is known, and passes the result to `then`, which
// answers.
using AfterLookup = ngx_int_t (*)(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments,
                                  Known known);
ngx_int_t look_up_client(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments, AfterLookup then);

}  // namespace rate_limit
