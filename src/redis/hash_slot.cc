// Computes slots: CRC-16 of the key, with the polynomial of XMODEM.
#include "redis/hash_slot.h"

#include <array>
#include <cstddef>

namespace rate_limit::redis {
namespace {

constexpr unsigned kPolynomial = 0x1021;

constexpr std::array<std::uint16_t, 256> make_table() {
    std::array<std::uint16_t, 256> table = {};
    for (unsigned byte = 0; byte < 256; byte++) {
        unsigned sum = byte << 8;
        for (unsigned bit = 0; bit < 8; bit++) {
            sum = (sum & 0x8000) != 0 ? (sum << 1) ^ kPolynomial : sum << 1;
        }
        table[byte] = static_cast<std::uint16_t>(sum);
    }
    return table;
}

constexpr std::array<std::uint16_t, 256> kTable = make_table();

}  // namespace

HashSlot hash_slot_of(std::string_view key) {
    const std::size_t open = key.find('{');
    const std::size_t close = open == std::string_view::npos ? open : key.find('}', open + 1);
    if (close != std::string_view::npos && close != open + 1) {
        key = key.substr(open + 1, close - open - 1);
    }
    unsigned sum = 0;
    for (const char c : key) {
        sum = ((sum << 8) & 0xffff) ^ kTable[(sum >> 8) ^ static_cast<unsigned char>(c)];
    }
    return static_cast<HashSlot>(sum % kHashSlots);
}

}  // namespace rate_limit::redis
