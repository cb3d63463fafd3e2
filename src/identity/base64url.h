// base64url without padding, as JSON web tokens and keys are written.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rate_limit::identity {

constexpr std::size_t kLongestEncoded = 16384;  // characters that are decoded at once

// Whether a text has only characters of base64url.
bool is_base64url(std::string_view text);

// Decodes `text` of at most kLongestEncoded characters into `out`, which has room for three bytes for every
// four characters, or what is left of four. False if it is not base64url.
bool decode_base64url(std::string_view text, unsigned char* out, std::size_t* size);

// Only while a configuration is read: it allocates.
std::string encode_base64url(const unsigned char* bytes, std::size_t size);

}  // namespace rate_limit::identity
