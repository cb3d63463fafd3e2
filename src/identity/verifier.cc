// Parses tokens and checks signatures and times.
#include "identity/verifier.h"

#include <openssl/err.h>

#include <cstring>
#include <limits>

#include "identity/base64url.h"

namespace rate_limit::identity {
namespace {

constexpr double kAlways = std::numeric_limits<double>::infinity();

static_assert(kLongestToken <= kLongestEncoded, "a part of a token is decoded at once");

// The parts between the dots of a token.
struct Parts {
    std::string_view header, claims, signature;
};

bool split(std::string_view token, Parts* parts) {
    const std::size_t first = token.find('.');
    const std::size_t second = first != std::string_view::npos ? token.find('.', first + 1) : first;
    if (second == std::string_view::npos) {
        return false;
    }
    *parts = {token.substr(0, first), token.substr(first + 1, second - first - 1), token.substr(second + 1)};
    return true;
}

// An upper estimate of the memory of a parsed text. jansson has a node for each value and a table for each
// object; characters inside strings are counted as if they were values.
std::size_t memory_of(const unsigned char* text, std::size_t size) {
    std::size_t sum = 2 * size;
    for (std::size_t i = 0; i < size; i++) {
        switch (text[i]) {
            case '{':
                sum += 320;
                break;
            case '[':
                sum += 192;
                break;
            case ':':
            case ',':
                sum += 96;
                break;
            default:
                break;
        }
    }
    return sum;
}

// Decodes a part of a token, which must be an object; sets `*memory` to its size in memory.
Json decode_object(std::string_view part, std::size_t* memory) {
    unsigned char text[kLongestToken];
    std::size_t size = 0;
    if (!decode_base64url(part, text, &size)) {
        return {};
    }
    *memory = memory_of(text, size);
    return parse_object(text, size);
}

std::string_view text_of(const json_t* value) {
    return json_is_string(value) ? std::string_view(json_string_value(value), json_string_length(value))
                                 : std::string_view();
}

// Reads a claim with a time; does not change `*time` if there is no such claim. False if it is not a number.
bool read_time(const Json& claims, const char* name, double* time) {
    const json_t* value = json_object_get(claims.get(), name);
    if (value != nullptr && json_is_number(value)) {
        *time = json_number_value(value);
    }
    return value == nullptr || json_is_number(value);
}

}  // namespace

const char* verdict_text(TokenVerdict verdict) {
    constexpr const char* kTexts[] = {"valid",
                                      "it is longer than 16384 bytes",
                                      "it is malformed",
                                      "its header has \"crit\"",
                                      "there is no key for its algorithm and key id",
                                      "its signature is wrong",
                                      "its claims are malformed",
                                      "it has expired",
                                      "it is not valid yet"};
    return kTexts[static_cast<unsigned>(verdict)];
}

TokenVerdict Verifier::check_signature(std::string_view text, std::size_t signature_size, const Json& header,
                                       double* leeway) {
    if (json_object_get(header.get(), "crit") != nullptr) {
        return TokenVerdict::kCritical;
    }
    // libjwt requires a null byte at the end.
    char copy[kLongestToken + 1];
    copy[text.copy(copy, kLongestToken)] = '\0';
    const std::string_view algorithm = text_of(json_object_get(header.get(), "alg"));
    const std::string_view id = text_of(json_object_get(header.get(), "kid"));
    TokenVerdict verdict = TokenVerdict::kNoKey;
    std::size_t tries = 0;
    for (const Key& key : keys.all()) {
        if (algorithm != jwt_alg_str(key.algorithm) || (!id.empty() && !key.id.empty() && id != key.id)) {
            continue;
        }
        if (tries++ == kMostTries) {
            break;
        }
        verdict = TokenVerdict::kForged;
        // OpenSSL verifies a PSS signature also without its leading zeros; RFC 8017 does not.
        if (key.signature_size != 0 && key.signature_size != signature_size) {
            continue;
        }
        computed_++;
        jwt_checker_error_clear(key.checker.get());
        if (jwt_checker_verify(key.checker.get(), copy) == 0) {
            *leeway = key.leeway;
            return TokenVerdict::kValid;
        }
        // nginx would log the errors left by OpenSSL for the next TLS connection.
        ERR_clear_error();
    }
    return verdict;
}

// Reads and verifies a token, except whether it is valid now.
TokenVerdict Verifier::read(std::string_view text, Token* token) {
    Parts parts;
    if (!split(text, &parts) || parts.signature.empty() || !is_base64url(parts.claims) ||
        !is_base64url(parts.signature)) {
        return TokenVerdict::kMalformed;
    }
    std::size_t unused = 0;
    const Json header = decode_object(parts.header, &unused);
    const json_t* id = json_object_get(header.get(), "kid");
    if (!header || (id != nullptr && !json_is_string(id))) {
        return TokenVerdict::kMalformed;
    }
    token->claims = decode_object(parts.claims, &token->memory);
    token->not_before = -kAlways;
    token->expires = kAlways;
    if (!token->claims || !read_time(token->claims, "nbf", &token->not_before) ||
        !read_time(token->claims, "exp", &token->expires)) {
        return TokenVerdict::kBadClaims;
    }
    double leeway = 0;
    const TokenVerdict verdict = check_signature(text, decoded_size(parts.signature), header, &leeway);
    token->not_before -= leeway;
    token->expires += leeway;
    return verdict;
}

Verifier::Result Verifier::verify(std::string_view text, double now) {
    if (text.size() > kLongestToken) {
        return {TokenVerdict::kTooLong, {}};
    }
    const Digest digest = digest_of(text);
    Token fresh = {};
    const Token* token = cache_.find(digest);
    if (token == nullptr) {
        const TokenVerdict verdict = read(text, &fresh);
        if (verdict != TokenVerdict::kValid) {
            return {verdict, {}};
        }
        cache_.remember(digest, fresh);
        token = &fresh;
    }
    if (now >= token->expires) {
        return {TokenVerdict::kExpired, {}};
    }
    if (now < token->not_before) {
        return {TokenVerdict::kNotYetValid, {}};
    }
    return {TokenVerdict::kValid, token->claims};
}

}  // namespace rate_limit::identity
