// The API calls charge and refund: correct what a client has used, for services that know a cost themselves.
#pragma once

#include "api/arguments.h"
#include "nginx/zone.h"

namespace rate_limit {

// Each function answers like the call remaining, at once or after Redis has answered, and returns the result
// for a content handler.

// Charges a client, even if the amount does not fit, up to debt_of() the policy.
ngx_int_t api_charge(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments);

// Gives back the newest requests of a client that still count, at most all of them. Changes nothing if the
// client is not known.
ngx_int_t api_refund(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments);

}  // namespace rate_limit
