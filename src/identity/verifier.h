// Verifies JSON web tokens, and remembers those that it has verified.
#pragma once

#include <cstdint>
#include <string_view>

#include "identity/claims.h"
#include "identity/signing_keys.h"
#include "identity/token_cache.h"

namespace rate_limit::identity {

constexpr std::size_t kLongestToken = 16384;  // bytes

enum class Verdict : std::uint8_t {
    kValid,
    kTooLong,
    kMalformed,  // not three parts of base64url, or a header that is no object or has a name twice
    kCritical,   // an extension that must be understood (`crit`), and is not
    kNoKey,      // none of its algorithm and its `kid`: also for `none`
    kForged,     // the signature does not verify
    kBadClaims,  // no object, a name twice, or an `exp` or `nbf` that is no number
    kExpired,
    kNotYetValid,
};

// In words, for the log.
const char* verdict_text(Verdict verdict);

// For one thread. Tokens are remembered by their SHA-256, in bounded memory: the signature of one that comes
// again is not computed again, whereas its times are compared with the clock whenever it is used.
class Verifier {
  public:
    struct Result {
        Verdict verdict;
        Json claims;  // if it is valid
    };

    // What is added to `keys` must be there before the first token.
    Keys keys;

    // Verifies the token `text`. `now` is the time of day in seconds. Allocates only for a token that it has
    // not seen, or has forgotten.
    Result verify(std::string_view text, double now);

    // How many signatures were computed; for tests.
    std::uint64_t computed() const { return computed_; }

    // How many keys a token is tried with at most.
    static constexpr std::size_t kMostTries = 8;

  private:
    Verdict read(std::string_view text, Token* token);
    Verdict check_signature(std::string_view text, const Json& header, double* leeway);

    TokenCache cache_;
    std::uint64_t computed_ = 0;
};

}  // namespace rate_limit::identity
