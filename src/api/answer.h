// Responses of the API: JSON, problem documents and headers.
#pragma once

#include <string>

#include "core/time.h"
#include "identity/claims.h"
#include "nginx/ngx.h"

namespace rate_limit {

// Send a response. Each returns the result for a content handler.
ngx_int_t send_json(ngx_http_request_t* r, ngx_uint_t status, const identity::Json& json);
ngx_int_t send_api_problem(ngx_http_request_t* r, ngx_uint_t status, const std::string& detail);
ngx_int_t send_no_content(ngx_http_request_t* r);

// Adds a header to the response; false if memory is exhausted. The texts must live as long as the request.
bool add_answer_header(ngx_http_request_t* r, std::string_view name, std::string_view value);

// Seconds as a JSON number. The caller owns the reference.
json_t* json_seconds(Micros micros);

}  // namespace rate_limit
