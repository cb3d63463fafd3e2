// Warnings about likely mistakes that need the whole configuration.
#pragma once

#include "nginx/zone.h"

namespace rate_limit {

// Warns of each directive that has another effect than it seems, because of directives of other modules at
// the same level. Called once, when all levels are merged and zones are known.
void warn_of_mistakes(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf);

}  // namespace rate_limit
