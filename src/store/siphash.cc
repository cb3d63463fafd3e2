// SipHash with one round for each word of input and three at the end.
#include "store/siphash.h"

#include <cstring>

namespace rate_limit {
namespace {

std::uint64_t rotate(std::uint64_t x, unsigned bits) { return (x << bits) | (x >> (64 - bits)); }

struct Sip {
    std::uint64_t a, b, c, d;

    void round() {
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

std::uint64_t little_endian(const char* at, std::size_t size) {
    std::uint64_t word = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    std::memcpy(&word, at, size);
#else
    for (std::size_t i = 0; i < size; i++) {
        word |= std::uint64_t{static_cast<unsigned char>(at[i])} << (i * 8);
    }
#endif
    return word;
}

}  // namespace

std::uint64_t siphash(const HashKey& key, std::string_view data) {
    Sip sip = {key.low ^ 0x736f6d6570736575, key.high ^ 0x646f72616e646f6d, key.low ^ 0x6c7967656e657261,
               key.high ^ 0x7465646279746573};
    const char* at = data.data();
    std::size_t left = data.size();
    for (; left >= 8; left -= 8, at += 8) {
        sip.absorb(little_endian(at, 8));
    }
    std::uint64_t last = std::uint64_t{data.size()} << 56;
    if (left != 0) {
        last |= little_endian(at, left);
    }
    sip.absorb(last);
    sip.c ^= 0xff;
    sip.round();
    sip.round();
    sip.round();
    return sip.a ^ sip.b ^ sip.c ^ sip.d;
}

}  // namespace rate_limit
