// Client keys: the sources of a rate_limit_key, and its value for a request.
#pragma once

#include "identity/address.h"
#include "nginx/module.h"

namespace rate_limit {

// A source of a rate_limit_key.
struct KeySource {
    enum class Kind : std::uint8_t { kAddress, kHeader, kCookie, kArgument, kClaim, kVariable };

    Kind kind;
    identity::Prefixes prefixes;  // of kAddress
    ngx_str_t name;               // of all others
    ngx_str_t label;              // prefix of the values of this source, such as header:x-api-key:
    ngx_int_t variable;           // of kVariable: index of the variable
};

// A rate_limit_key. Its variable is evaluated once per request, on first use.
struct ClientKey {
    ngx_str_t name;
    ngx_array_t sources;  // of KeySource
    ngx_str_t file;       // position of the directive
    ngx_uint_t line;
};

// The handler of the variable of a rate_limit_key; `data` is the ClientKey.
ngx_int_t get_client_key(ngx_http_request_t* r, ngx_http_variable_value_t* value, uintptr_t data);

}  // namespace rate_limit
