// Numbers as they travel and as they are hashed: the lowest byte first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rate_limit {

template <class Word>
std::uint64_t little_endian(const char* at) {
    Word word = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    std::memcpy(&word, at, sizeof(word));
#else
    for (std::size_t i = 0; i < sizeof(word); i++) {
        word = static_cast<Word>(word | Word{static_cast<unsigned char>(at[i])} << (i * 8));
    }
#endif
    return word;
}

}  // namespace rate_limit
