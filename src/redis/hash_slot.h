// The hash slots of Redis Cluster.
#pragma once

#include <cstdint>
#include <string_view>

namespace rate_limit::redis {

// A cluster distributes its keys over its nodes by hash slots.
using HashSlot = std::uint16_t;
constexpr unsigned kHashSlots = 16384;

// The hash slot of a key. If the key has braces with text between them, only the text in the first braces
// counts.
HashSlot hash_slot_of(std::string_view key);

}  // namespace rate_limit::redis
