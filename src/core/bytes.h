// Numbers as bytes, the lowest byte first: in Redis, in hashes and in logs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace rate_limit {

template <std::size_t... kIndices>
std::uint64_t join_bytes(const char* at, std::index_sequence<kIndices...>) {
    return ((std::uint64_t{static_cast<unsigned char>(at[kIndices])} << (kIndices * 8)) | ...);
}

template <std::size_t... kIndices>
void split_bytes(std::uint64_t number, char* at, std::index_sequence<kIndices...>) {
    ((at[kIndices] = static_cast<char>(number >> (kIndices * 8))), ...);
}

// The number in the kBytes bytes at `at`. The compiler makes a single load of 1, 2, 4 or 8 bytes, which it
// does not of a loop; 5 to 7 bytes are two loads that overlap.
template <std::size_t kBytes>
std::uint64_t little_endian(const char* at) {
    static_assert(kBytes >= 1 && kBytes <= 8, "a number has 1 to 8 bytes");
    if constexpr (kBytes > 4 && kBytes < 8) {
        return little_endian<4>(at) | little_endian<4>(at + kBytes - 4) << (kBytes - 4) * 8;
    } else {
        return join_bytes(at, std::make_index_sequence<kBytes>());
    }
}

// The same for a size that is not a constant, 0 to 8.
inline std::uint64_t little_endian(const char* at, std::size_t bytes) {
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < bytes; i++) {
        number |= std::uint64_t{static_cast<unsigned char>(at[i])} << (i * 8);
    }
    return number;
}

// Writes the low kBytes bytes of `number` to `at`. Returns the end of what was written.
template <std::size_t kBytes>
char* put_little_endian(char* at, std::uint64_t number) {
    static_assert(kBytes >= 1 && kBytes <= 8, "a number has 1 to 8 bytes");
    if constexpr (kBytes > 4 && kBytes < 8 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) {
        const std::uint64_t high = number >> (kBytes - 4) * 8;
        std::memcpy(at, &number, 4);
        std::memcpy(at + kBytes - 4, &high, 4);
    } else {
        split_bytes(number, at, std::make_index_sequence<kBytes>());
    }
    return at + kBytes;
}

}  // namespace rate_limit
