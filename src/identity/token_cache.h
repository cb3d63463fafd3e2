// Tokens that were verified, by their digest: a bounded number of them, those that were used last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "identity/claims.h"

namespace rate_limit::identity {

// SHA-256 of a token.
struct Digest {
    unsigned char bytes[32];
};

Digest digest_of(std::string_view token);

// What is known of a token whose signature is right.
struct Token {
    Json claims;
    double not_before;  // seconds since 1970, with the leeway of its key
    double expires;
    std::size_t memory;  // bytes that the claims take
};

// For one thread. Makes its table with the first token.
class TokenCache {
  public:
    // How many tokens are remembered at most, how many bytes their claims may take, and how many those of one
    // token: one with more is not remembered.
    static constexpr std::size_t kMostTokens = 4096;
    static constexpr std::size_t kMostBytes = 16 << 20;
    static constexpr std::size_t kMostBytesOfOne = 64 << 10;

    // The token of a digest, now the last used; null if it is not known. It stays until the next remember().
    const Token* find(const Digest& digest);

    // Remembers a token that find() does not know, in entry of those that were not used for longest.
    void remember(const Digest& digest, const Token& token);

  private:
    using Index = std::uint16_t;
    static constexpr Index kNone = 0xffff;
    static constexpr std::size_t kBuckets = 4096;

    struct Entry {
        Digest digest;
        Token token;
        Index next;          // of the same bucket, or of the free entries
        Index newer, older;  // by their use
    };

    struct Table {
        Entry entries[kMostTokens];
        Index buckets[kBuckets];
        Index newest, oldest;
        Index free;
    };

    bool make_table();
    Index* bucket_of(const Digest& digest) const;
    void take_out(Index index);
    void put_first(Index index);
    void forget_oldest();

    std::unique_ptr<Table> table_;
    std::size_t bytes_ = 0;
};

}  // namespace rate_limit::identity
