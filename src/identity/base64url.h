// base64url without padding, the encoding of JSON web tokens and keys.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rate_limit::identity {

constexpr std::size_t kLongestEncoded = 16384;  // longest text that can be decoded, characters

// Whether all characters of a text are of base64url.
bool is_base64url(std::string_view text);

// How many bytes a text of base64url encodes.
constexpr std::size_t decoded_size(std::string_view text) {
    return text.size() / 4 * 3 + text.size() % 4 * 3 / 4;
}

// Decodes `text` of at most kLongestEncoded characters into `out`, which has room for three bytes for every
// four characters or the rest of four. False if `text` is not base64url.
bool decode_base64url(std::string_view text, unsigned char* out, std::size_t* size);

// Allocates: only for the configuration.
std::string encode_base64url(const unsigned char* bytes, std::size_t size);

}  // namespace rate_limit::identity
