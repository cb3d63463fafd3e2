// SHA-256 of tokens.
#pragma once

#include <string_view>

namespace rate_limit::identity {

struct Digest {
    unsigned char bytes[32];
};

Digest digest_of(std::string_view token);

}  // namespace rate_limit::identity
