// The hash slots of Redis Cluster.
#pragma once

#include <cstdint>
#include <string_view>

namespace rate_limit::redis {

// A cluster distributes its keys over its nodes by slots.
using Slot = std::uint16_t;
constexpr unsigned kSlots = 16384;

// The slot of a key. If the key has braces with text between them, only the text in the first braces counts.
Slot slot_of(std::string_view key);

}  // namespace rate_limit::redis
