// The variables $rate_limit_*.
#pragma once

#include "nginx/ngx.h"

namespace rate_limit {

// Adds the variables to the configuration; false if memory is exhausted.
bool add_variables(ngx_conf_t* cf);

}  // namespace rate_limit
