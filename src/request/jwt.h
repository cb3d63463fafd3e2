// The token of a request and its claims.
#pragma once

#include "identity/claims.h"
#include "nginx/module.h"

namespace rate_limit {

constexpr std::string_view kClaimPrefix = "rate_limit_jwt_";  // of variables

// A rate_limit_jwt_source.
struct TokenSource {
    ngx_str_t name;      // of the variable that holds the token
    ngx_int_t variable;  // index of the variable
    ngx_str_t file;      // position of the directive
    ngx_uint_t line;
};

// A claim of the request's token as text; empty if the token has no such claim or is not valid. The token is
// verified on the first call for a request only. The text lives as long as the request, or is in `number`.
std::string_view request_claim(ngx_http_request_t* r, std::string_view path,
                               char (&number)[identity::kLongestNumber]);

// Adds the variables $rate_limit_jwt_CLAIM; false if memory is exhausted.
bool add_claim_variables(ngx_conf_t* cf);

}  // namespace rate_limit
