// Clients' names as they stand in Redis and in accounts, where room is limited.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/policy.h"
#include "redis/buffer.h"

namespace rate_limit {

constexpr std::size_t kLongestName = 128;

// Where short_name may put a digest: "sha256:" and its hexadecimal digits.
struct NameRoom {
    static constexpr std::size_t kSize = 7 + 64;
    char text[kSize];
};

// The name itself, or its SHA-256, in `room`, if it is longer than kLongestName bytes, could be taken for
// such a digest, or begins with "}". Not for a name that is short already: a digest would get a digest of its
// own.
std::string_view short_name(std::string_view name, NameRoom* room);

// The key of a client in a zone: PREFIX ZONE:ALGORITHM:{CLIENT}. The client's name is short.
void append_key_text(std::string_view prefix, std::string_view zone, Algorithm algorithm,
                     std::string_view client, redis::Buffer* buffer);

// The same as a word of a command. The client's name may be long.
void append_key(std::string_view prefix, std::string_view zone, Algorithm algorithm, std::string_view client,
                redis::Buffer* buffer);

}  // namespace rate_limit
