// Digests of long names.
#include "core/client_name.h"

#include <openssl/evp.h>

#include <cstring>

namespace rate_limit {
namespace {

constexpr std::string_view kDigestMark = "sha256:";

}  // namespace

// A name that begins with "}" would make an empty hash tag, and then each key of the client would be in
// another slot of a cluster.
std::string_view digest_name(std::string_view name, NameRoom* room) {
    if (name.size() <= kLongestName && name.substr(0, kDigestMark.size()) != kDigestMark &&
        name.substr(0, 1) != "}") {
        return name;
    }
    static const char kHex[] = "0123456789abcdef";
    unsigned char digest[32] = {};
    static_assert(kDigestMark.size() + 2 * sizeof digest == NameRoom::kSize, "a digest fills its room");
    EVP_Digest(name.data(), name.size(), digest, nullptr, EVP_sha256(), nullptr);
    std::memcpy(room->text, kDigestMark.data(), kDigestMark.size());
    char* at = room->text + kDigestMark.size();
    for (const unsigned char byte : digest) {
        *at++ = kHex[byte >> 4];
        *at++ = kHex[byte & 15];
    }
    return {room->text, NameRoom::kSize};
}

bool is_digest(std::string_view name) {
    return name.size() == NameRoom::kSize && name.substr(0, kDigestMark.size()) == kDigestMark &&
           name.find_first_not_of("0123456789abcdef", kDigestMark.size()) == std::string_view::npos;
}

}  // namespace rate_limit
