// Checks of rate_limit_jwt_source and of the variables of claims that need the whole configuration.
#pragma once

#include "configuration/configuration.h"

namespace rate_limit {

// False after an error was logged.
bool resolve_tokens(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf);

}  // namespace rate_limit
