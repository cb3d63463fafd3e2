// The names of keys in Redis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "connection/buffer.h"
#include "core/policy.h"

namespace rate_limit {

// Appends the key of a client in a zone: PREFIX ZONE:ALGORITHM:{CLIENT}, without a space after the prefix.
// `client` is a short name: see short_name in core/client_name.h.
void append_key_text(std::string_view prefix, std::string_view zone, Algorithm algorithm,
                     std::string_view client, redis::Buffer* buffer);

// Appends the same key as an argument of a command. `client` may be a long name, which is shortened, unless
// `is_short`.
void append_key(std::string_view prefix, std::string_view zone, Algorithm algorithm, std::string_view client,
                redis::Buffer* buffer, bool is_short = false);

// The id of an instance or a sender in Redis: 16 hexadecimal digits.
std::string print_id(std::uint64_t id);

// Writes the same keys as append_key, but faster: it caches the first part of the keys of the last few zones.
class KeyWriter {
  public:
    explicit KeyWriter(std::string prefix) : prefix_(std::move(prefix)) {}

    // `client` may be a long name, which is shortened, unless `is_short`.
    void append(std::string_view zone, Algorithm algorithm, std::string_view client, bool is_short,
                redis::Buffer* buffer);

  private:
    // PREFIX ZONE:ALGORITHM:{
    struct Head {
        static constexpr std::size_t kRoom = 120;

        char text[kRoom];
        std::uint8_t size = 0;       // of the text; 0 if this head is unused
        std::uint8_t zone_size = 0;  // of the zone's name, which follows the prefix
        Algorithm algorithm = {};
    };

    const Head* head_of(std::string_view zone, Algorithm algorithm);

    static constexpr std::size_t kHeads = 4;

    std::string prefix_;
    Head heads_[kHeads] = {};
    std::size_t next_ = 0;  // modulo kHeads, the head to replace next
};

}  // namespace rate_limit
