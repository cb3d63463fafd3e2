// The options of rate_limit_api and rate_limit_dashboard.
#pragma once

#include "nginx/ngx.h"

namespace rate_limit {

struct ApiSettings {
    bool write = false;
    bool keys = true;  // clients' names may be shown
    ngx_http_handler_pt handler = nullptr;
    void** context = nullptr;  // what all modules have configured where the directive stands
    ngx_str_t directive = {};  // its name
    ngx_str_t file = {};       // where it stands
    ngx_uint_t line = 0;
};

}  // namespace rate_limit
