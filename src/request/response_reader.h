// The filters of rate_limit_response, which read numbers out of a response while it passes.
#pragma once

#include "nginx/ngx.h"

namespace rate_limit {

// Adds the header filter and the body filter, if the configuration has rate_limit_response.
void add_response_filters(ngx_conf_t* cf);

}  // namespace rate_limit
