// Shadows: zones that decide beside the live limits, without effect, so that operators see what they would
// do.
#pragma once

#include "request/request.h"

namespace rate_limit {

// Has the shadows of a phase decide a request, and counts how they differ from the live limits of this phase.
// `admitted`: whether the live limits have admitted the request. The request does not wait for the shadows,
// and their decisions have no effect on the request.
void check_shadows(ngx_http_request_t* r, const ngx_http_rate_limit_phase_t& phase, RequestState* state,
                   bool admitted);

// Called before the process ends. Drops the checks that Redis has not answered yet, without counting them.
void end_shadows();

}  // namespace rate_limit
