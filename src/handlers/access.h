// The handlers of the access phase and the precontent phase.
#pragma once

#include "nginx/ngx.h"

namespace rate_limit {

// Decides limits before allow, deny, auth_basic and auth_request.
ngx_int_t handle_access(ngx_http_request_t* r);

// Decides limits with phase=precontent: after access is granted, before try_files and mirror.
ngx_int_t handle_precontent(ngx_http_request_t* r);

}  // namespace rate_limit
