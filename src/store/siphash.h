// SipHash-1-3: a keyed hash, so that nobody who does not know the key can choose colliding clients.
#pragma once

#include <cstdint>
#include <string_view>

namespace rate_limit {

struct HashKey {
    std::uint64_t low;
    std::uint64_t high;
};

std::uint64_t siphash(const HashKey& key, std::string_view data);

}  // namespace rate_limit
