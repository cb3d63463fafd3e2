// Candidates: zones that decide beside the live ones, without effect, so that one sees what they would do.
#pragma once

#include "nginx/request.h"

namespace rate_limit {

inline bool has_shadows(const ngx_http_rate_limit_loc_conf_t& conf) {
    return conf.shadows != nullptr && conf.shadows->nelts != 0;
}

// Lets the candidates of this location decide a request that its live limits have admitted, or have not, and
// counts how they differ. Nobody waits for it, and nothing follows from it.
void check_shadows(ngx_http_request_t* r, RequestState* state, bool admitted);

// The process is about to end: nobody is told of what Redis has not answered yet.
void end_shadows();

}  // namespace rate_limit
