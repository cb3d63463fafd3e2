// Corrects what a request was charged by what the request turned out to cost.
#pragma once

#include "nginx/ngx.h"

namespace rate_limit {

// The handler of the log phase: settles the limits of a request that have settle=.
ngx_int_t handle_log(ngx_http_request_t* r);

}  // namespace rate_limit
