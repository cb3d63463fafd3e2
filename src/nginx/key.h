// Who the client is: what rate_limit_key says, and how a request answers it.
#pragma once

#include "identity/address.h"
#include "nginx/module.h"

namespace rate_limit {

// One of the sources of a rate_limit_key.
struct KeySource {
    enum class Kind : std::uint8_t { kAddress, kHeader, kCookie, kArgument, kClaim, kVariable };

    Kind kind;
    identity::Prefixes prefixes;  // of kAddress
    ngx_str_t name;               // of all others
    ngx_str_t label;              // what a value of this source begins with, such as header:x-api-key:
    ngx_int_t variable;           // of kVariable: its index
};

// A rate_limit_key. Its variable is evaluated when it is first used, and once in a request.
struct ClientKey {
    ngx_str_t name;
    ngx_array_t sources;  // of KeySource
    ngx_str_t file;       // where the directive stands
    ngx_uint_t line;
};

// The handler of its variable; `data` is the ClientKey.
ngx_int_t get_client_key(ngx_http_request_t* r, ngx_http_variable_value_t* value, uintptr_t data);

}  // namespace rate_limit
