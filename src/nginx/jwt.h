// The token of a request and its claims.
#pragma once

#include "identity/claims.h"
#include "nginx/module.h"

namespace rate_limit {

constexpr std::string_view kClaimPrefix = "rate_limit_jwt_";  // of variables

// A rate_limit_jwt_source.
struct TokenSource {
    ngx_str_t name;      // of its variable
    ngx_int_t variable;  // its index
    ngx_str_t file;      // where the directive stands
    ngx_uint_t line;
};

// A claim of the request's token as text, empty if there is none or if the token is not valid. The token is
// verified when it is first asked for, and once in a request. The text lives as long as the request, or as
// `number`.
std::string_view request_claim(ngx_http_request_t* r, std::string_view path,
                               char (&number)[identity::kLongestNumber]);

// Adds the variables $rate_limit_jwt_CLAIM; false if there is no memory.
bool add_claim_variables(ngx_conf_t* cf);

}  // namespace rate_limit
