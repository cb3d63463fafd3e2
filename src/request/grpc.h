// The response to a rejected gRPC or gRPC-Web request: a status in headers, without a body.
#pragma once

#include "request/request.h"

namespace rate_limit {

// The media type of the response, if the request is gRPC or gRPC-Web and its location answers such requests
// by a gRPC status; else empty.
std::string_view grpc_type(ngx_http_request_t* r);

// Each sends the response: the first to a rejected request, the second to a request whose limits cannot be
// decided. Returns the code for ngx_http_finalize_request.
ngx_int_t send_grpc_rejection(ngx_http_request_t* r, const RequestState& state, std::string_view type);
ngx_int_t send_grpc_unavailable(ngx_http_request_t* r, std::string_view type);

}  // namespace rate_limit
