// Warnings of mistakes that show only when the whole configuration is read.
#pragma once

#include "nginx/zone.h"

namespace rate_limit {

// Warns of each place where a directive does not do what it seems to, because of what other modules have
// configured there. Called once, when everything is merged and zones are known.
void warn_of_mistakes(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf);

}  // namespace rate_limit
