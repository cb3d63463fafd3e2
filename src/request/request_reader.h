// Reads the numbers of rate_limit_request out of the request body, before limits are checked.
#pragma once

#include "nginx/module.h"

namespace rate_limit {

// Called by a handler of the access phase, in a location with rate_limit_request. NGX_DECLINED: the numbers
// are there, or the body has none. Any other result is the result of the handler: nginx runs the handler
// again when the body has arrived, or responds with an error.
ngx_int_t read_request_body(ngx_http_request_t* r, const ngx_http_rate_limit_loc_conf_t& conf);

}  // namespace rate_limit
