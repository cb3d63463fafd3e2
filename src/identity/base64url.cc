// OpenSSL's base64 in the alphabet of URLs.
#include "identity/base64url.h"

#include <openssl/evp.h>

#include <algorithm>

namespace rate_limit::identity {
bool is_base64url(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
               c == '_';
    });
}

bool decode_base64url(std::string_view text, unsigned char* out, std::size_t* size) {
    constexpr std::size_t kGroup = 4;  // characters that make three bytes
    unsigned char padded[kLongestEncoded + kGroup];
    const std::size_t last = text.size() % kGroup;
    if (text.size() > kLongestEncoded || last == 1 || !is_base64url(text)) {
        return false;
    }
    for (std::size_t i = 0; i < text.size(); i++) {
        const char c = text[i];
        padded[i] = static_cast<unsigned char>(c == '-' ? '+' : c == '_' ? '/' : c);
    }
    const std::size_t padding = last == 0 ? 0 : kGroup - last;
    for (std::size_t i = 0; i < padding; i++) {
        padded[text.size() + i] = '=';
    }
    const int written = EVP_DecodeBlock(out, padded, static_cast<int>(text.size() + padding));
    if (written < 0) {
        return false;
    }
    *size = static_cast<std::size_t>(written) - padding;
    return true;
}

std::string encode_base64url(const unsigned char* bytes, std::size_t size) {
    std::string text(4 * ((size + 2) / 3) + 1, '\0');
    const int written =
        EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes, static_cast<int>(size));
    text.resize(static_cast<std::size_t>(written));
    while (!text.empty() && text.back() == '=') {
        text.pop_back();
    }
    for (char& c : text) {
        c = c == '+' ? '-' : c == '/' ? '_' : c;
    }
    return text;
}

}  // namespace rate_limit::identity
