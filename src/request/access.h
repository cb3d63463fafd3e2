// The handler of the access phase.
#pragma once

#include "nginx/ngx.h"

namespace rate_limit {

ngx_int_t handle_access(ngx_http_request_t* r);

}  // namespace rate_limit
