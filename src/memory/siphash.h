// SipHash-1-3, a keyed hash: without the key nobody can choose names that collide. One round for each word of
// the input, and three at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/bytes.h"

namespace rate_limit {

struct HashKey {
    std::uint64_t low;
    std::uint64_t high;
};

namespace sip {

inline std::uint64_t rotate(std::uint64_t x, unsigned bits) { return (x << bits) | (x >> (64 - bits)); }

struct State {
    std::uint64_t a, b, c, d;

    [[gnu::always_inline]] void round() {
        a += b;
        c += d;
        b = rotate(b, 13) ^ a;
        d = rotate(d, 16) ^ c;
        a = rotate(a, 32);
        c += b;
        a += d;
        b = rotate(b, 17) ^ c;
        d = rotate(d, 21) ^ a;
        c = rotate(c, 32);
    }

    void absorb(std::uint64_t word) {
        d ^= word;
        round();
        a ^= word;
    }
};

// The last bytes, fewer than 8, in two reads that may overlap.
[[gnu::always_inline]] inline std::uint64_t last_bytes(const char* at, std::size_t size) {
    if (size >= 4) {
        return little_endian<4>(at) | little_endian<4>(at + size - 4) << (size * 8 - 32);
    }
    if (size >= 2) {
        return little_endian<2>(at) | little_endian<2>(at + size - 2) << (size * 8 - 16);
    }
    return size != 0 ? static_cast<unsigned char>(*at) : 0;
}

}  // namespace sip

[[gnu::always_inline]] inline std::uint64_t siphash(const HashKey& key, std::string_view data) {
    sip::State state = {key.low ^ 0x736f6d6570736575, key.high ^ 0x646f72616e646f6d,
                        key.low ^ 0x6c7967656e657261, key.high ^ 0x7465646279746573};
    const char* at = data.data();
    std::size_t left = data.size();
    for (; left >= 8; left -= 8, at += 8) {
        state.absorb(little_endian<8>(at));
    }
    state.absorb(std::uint64_t{data.size()} << 56 | sip::last_bytes(at, left));
    state.c ^= 0xff;
    state.round();
    state.round();
    state.round();
    return state.a ^ state.b ^ state.c ^ state.d;
}

}  // namespace rate_limit
