// A bounded LRU cache of verified tokens, by digest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "identity/claims.h"
#include "identity/digest.h"

namespace rate_limit::identity {

// A token whose signature is valid.
struct Token {
    Json claims;
    double not_before;  // seconds since 1970, including the leeway of the key
    double expires;
    std::size_t memory;  // bytes that the claims take
};

// For one thread. Allocates its table for the first token; without memory it remembers nothing.
class TokenCache {
  public:
    // The most tokens, the most bytes of all claims, and the most bytes of the claims of one token: a token
    // with more is not remembered.
    static constexpr std::size_t kMostTokens = 4096;
    static constexpr std::size_t kMostBytes = 16 << 20;
    static constexpr std::size_t kMostBytesOfOne = 64 << 10;

    // The token of a digest, which becomes the last used one; null if unknown. Valid until the next
    // remember().
    const Token* find(const Digest& digest);

    // Adds a token that find() does not know; removes the least recently used tokens if there is no room.
    void remember(const Digest& digest, const Token& token);

  private:
    using Index = std::uint16_t;
    static constexpr Index kNone = 0xffff;
    static constexpr std::size_t kBuckets = 4096;

    struct Entry {
        Digest digest;
        Token token;
        Index next;          // in the same bucket, or in the list of free entries
        Index newer, older;  // in the order of use
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
