// What rate_limit_request and rate_limit_response of a location read out of bodies.
#pragma once

#include "body/body_reader.h"
#include "nginx/ngx.h"

namespace rate_limit {

// A variable of rate_limit_request or rate_limit_response. Several locations may define it, each with a path.
struct BodyVariable {
    ngx_str_t name;
    bool is_request;
};

// The directives of one level. Levels below inherit all of them or none.
struct BodySettings {
    body::Paths paths;
    BodyVariable* variables[body::kMaxPaths];  // by path
    std::size_t most;                          // max= of rate_limit_request, in bytes
};

// A body of a request or a response while it is read, and its numbers.
struct ReadBody {
    const BodySettings* settings;
    body::BodyReader reader;
};

}  // namespace rate_limit
