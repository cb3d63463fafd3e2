// The values of the variables of rate_limit_request and rate_limit_response.
#pragma once

#include "request/body_settings.h"
#include "request/request.h"
#include "statistics/body_statistics.h"

namespace rate_limit {

// The get handler of a variable. `data` is its BodyVariable.
ngx_int_t get_body_variable(ngx_http_request_t* r, ngx_http_variable_value_t* value, uintptr_t data);

// Creates a reader for a body of this format; null if memory is exhausted.
ReadBody* new_read_body(ngx_http_request_t* r, const BodySettings& settings, body::Format format);

// Ends a body.
BodyResult finish_body(ReadBody* read);

// Counts a body, if some location shows counters.
void count_body(ngx_http_request_t* r, BodyKind kind, BodyResult result);

}  // namespace rate_limit
