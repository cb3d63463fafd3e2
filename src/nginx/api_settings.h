// The options of rate_limit_api and rate_limit_dashboard.
#pragma once

#include "nginx/ngx.h"

namespace rate_limit {

struct ApiSettings {
    bool write = false;
    bool keys = true;  // the names of clients may be shown
    ngx_http_handler_pt handler = nullptr;
    void** context = nullptr;  // location configurations of all modules at the directive
    ngx_str_t directive = {};  // name of the directive
    ngx_str_t file = {};       // position of the directive
    ngx_uint_t line = 0;
};

}  // namespace rate_limit
