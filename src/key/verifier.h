// Verifies JSON web tokens, and remembers those that it has verified.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "key/claims.h"
#include "key/keys.h"

typedef struct evp_md_ctx_st EVP_MD_CTX;
typedef struct evp_md_st EVP_MD;

namespace rate_limit::key {

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
    kNoMemory,
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

    Verifier();
    ~Verifier();
    Verifier(const Verifier&) = delete;
    Verifier& operator=(const Verifier&) = delete;

    // Verifies the token `text`. `now` is the time of day in seconds. Allocates only for a token that it has
    // not seen, or has forgotten.
    Result verify(std::string_view text, double now);

    // How many signatures were computed; for tests.
    std::uint64_t computed() const { return computed_; }

    // How many tokens are remembered at most, how many bytes their claims may take in memory, and how many
    // those of one token: one with more is verified each time.
    static constexpr std::size_t kMostTokens = 4096;
    static constexpr std::size_t kMostBytes = 16 << 20;
    static constexpr std::size_t kMostBytesOfOne = 64 << 10;

    // How many keys a token is tried with at most, and the longest header of one in base64url.
    static constexpr std::size_t kMostTries = 8;
    static constexpr std::size_t kLongestHeader = 4096;

  private:
    struct Digest {
        unsigned char bytes[32];
    };
    struct Token {
        Digest digest;
        Json claims;  // empty in a free place
        double not_before;
        double expires;
        std::uint64_t used;  // when, as a number that grows
        std::size_t size;    // bytes that the claims take
    };

    bool digest_of(std::string_view text, Digest* digest);
    Token* find(const Digest& digest);
    void remember(const Token& token, double now);
    void forget(Token* token);
    Verdict read(std::string_view text, Token* token);
    Verdict check_signature(std::string_view text, const Json& header, double* leeway);

    EVP_MD_CTX* context_ = nullptr;
    EVP_MD* sha256_ = nullptr;
    std::unique_ptr<Token[]> tokens_;
    std::uint64_t uses_ = 0;
    std::uint64_t computed_ = 0;
    std::size_t bytes_ = 0;
    std::size_t hand_ = 0;  // where the search for bytes to free goes on
};

}  // namespace rate_limit::key
