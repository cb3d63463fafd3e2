// The JSON API: its directive, its location and its handler.
#pragma once

#include "nginx/api_settings.h"
#include "nginx/module.h"

namespace rate_limit {

// Reads `[write=on] [keys=off]` of a directive whose location gets `handler`. Returns NGX_CONF_OK or
// NGX_CONF_ERROR.
char* read_api_settings(ngx_conf_t* cf, ngx_command_t* cmd, ngx_http_rate_limit_loc_conf_t* conf,
                        ngx_http_handler_pt handler);

// The content handler of the API. The location must have settings.
ngx_int_t handle_api(ngx_http_request_t* r);

// The settings of the location of a request. The location must have settings.
const ApiSettings& api_settings(ngx_http_request_t* r);

// The path of a request below the path of its location, without a slash before it. If the path is not below
// the location, the last part of the path.
std::string_view api_path(ngx_http_request_t* r);

}  // namespace rate_limit
