// What a limit means for one request: its rates and its cost, which variables may say.
#pragma once

#include "nginx/zone.h"

namespace rate_limit {

// The cost of a request; what a variable says that is no cost counts as 1.
std::uint32_t cost_of(ngx_http_request_t* r, const AppliedLimit& applied);

// The policy that holds for this request; null if its rate cannot be told.
const Policy* policy_of(ngx_http_request_t* r, const AppliedLimit& applied);

}  // namespace rate_limit
