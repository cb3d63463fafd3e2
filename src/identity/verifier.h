// Verifies JSON web tokens, with a cache of verified tokens.
#pragma once

#include <cstdint>
#include <string_view>

#include "identity/claims.h"
#include "identity/signing_keys.h"
#include "identity/token_cache.h"

namespace rate_limit::identity {

constexpr std::size_t kLongestToken = 16384;  // bytes

enum class TokenVerdict : std::uint8_t {
    kValid,
    kTooLong,
    kMalformed,  // not three parts of base64url, or a header that is not an object or has duplicate names
    kCritical,   // a critical extension (`crit`), none of which is supported
    kNoKey,      // no key for its algorithm and `kid`; also for `none`
    kForged,     // the signature does not verify
    kBadClaims,  // not an object, duplicate names, or an `exp` or `nbf` that is not a number
    kExpired,
    kNotYetValid,
};

// A text for the log.
const char* verdict_text(TokenVerdict verdict);

// For one thread. Verified tokens are cached by their SHA-256, in bounded memory: the signature of a cached
// token is not verified again, but its times are compared with the clock on each use.
class Verifier {
  public:
    struct Result {
        TokenVerdict verdict;
        Json claims;  // only if the token is valid
    };

    // Add all keys before the first token.
    SigningKeys keys;

    // Verifies the token `text`. `now` is in seconds since 1970. Allocates only for a token that is not in
    // the cache.
    Result verify(std::string_view text, double now);

    // How many signatures were computed; for tests.
    std::uint64_t computed() const { return computed_; }

    // The most keys that are tried for a token.
    static constexpr std::size_t kMostTries = 8;

  private:
    TokenVerdict read(std::string_view text, Token* token);
    TokenVerdict check_signature(std::string_view text, std::size_t signature_size, const Json& header,
                                 double* leeway);

    TokenCache cache_;
    std::uint64_t computed_ = 0;
};

}  // namespace rate_limit::identity
