// The names of keys in Redis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/policy.h"
#include "redis/buffer.h"

namespace rate_limit {

// The key of a client in a zone: PREFIX ZONE:ALGORITHM:{CLIENT}. The client's name is short.
void append_key_text(std::string_view prefix, std::string_view zone, Algorithm algorithm,
                     std::string_view client, redis::Buffer* buffer);

// The same as a word of a command. The client's name may be long, if it is not said to be short.
void append_key(std::string_view prefix, std::string_view zone, Algorithm algorithm, std::string_view client,
                redis::Buffer* buffer, bool is_short = false);

// The id of an instance or a sender as it stands in Redis: 16 hexadecimal digits.
std::string print_id(std::uint64_t id);

// Writes keys as append_key does, faster: keeps the first part of the keys of the last few zones.
class KeyWriter {
  public:
    explicit KeyWriter(std::string prefix) : prefix_(std::move(prefix)) {}

    // The client's name may be long, if it is not said to be short.
    void append(std::string_view zone, Algorithm algorithm, std::string_view client, bool is_short,
                redis::Buffer* buffer);

  private:
    // PREFIX ZONE:ALGORITHM:{
    struct Head {
        static constexpr std::size_t kRoom = 120;

        char text[kRoom];
        std::uint8_t size = 0;       // 0 if there is none
        std::uint8_t zone_size = 0;  // of its name, which follows the prefix
        Algorithm algorithm = {};
    };

    const Head* head_of(std::string_view zone, Algorithm algorithm);

    static constexpr std::size_t kHeads = 4;

    std::string prefix_;
    Head heads_[kHeads] = {};  // of keys that were written lately
    std::size_t next_ = 0;     // that gives way
};

}  // namespace rate_limit
