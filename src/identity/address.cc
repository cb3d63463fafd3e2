// Prints addresses, whole or cut to a prefix, and reads them.
#include "identity/address.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <charconv>
#include <cstring>

namespace rate_limit::identity {
namespace {

constexpr std::size_t kV4 = 4;
constexpr std::size_t kV6 = 16;
constexpr unsigned char kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// Reads a number from 1 to `most` that fills `text`.
bool parse_length(std::string_view text, unsigned most, std::uint8_t* length) {
    unsigned number = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || stop != end || number == 0 || number > most) {
        return false;
    }
    *length = static_cast<std::uint8_t>(number);
    return true;
}

void keep_bits(unsigned char* bytes, std::size_t size, unsigned bits) {
    for (std::size_t i = 0; i < size; i++) {
        const unsigned left = bits > 8 * i ? bits - 8 * static_cast<unsigned>(i) : 0;
        bytes[i] &= left >= 8 ? 0xffU : 0xffU << (8 - left);
    }
}

char* print_v4(char* at, const unsigned char* bytes) {
    for (std::size_t i = 0; i < kV4; i++) {
        if (i != 0) {
            *at++ = '.';
        }
        at = std::to_chars(at, at + 3, bytes[i]).ptr;
    }
    return at;
}

}  // namespace

bool parse_prefixes(std::string_view text, Prefixes* prefixes) {
    if (text.empty()) {
        return true;
    }
    const std::size_t comma = text.find(',');
    return text[0] == '/' && comma != std::string_view::npos &&
           parse_length(text.substr(1, comma - 1), 8 * kV4, &prefixes->v4) &&
           parse_length(text.substr(comma + 1), 8 * kV6, &prefixes->v6);
}

std::size_t print_address(const unsigned char* bytes, std::size_t size, const Prefixes& prefixes,
                          char (&name)[kLongestAddress]) {
    if (size == kV6 && std::memcmp(bytes, kMapped, sizeof(kMapped)) == 0) {
        bytes += sizeof(kMapped);
        size = kV4;
    }
    const unsigned bits = size == kV4 ? prefixes.v4 : prefixes.v6;
    unsigned char kept[kV6];
    std::memcpy(kept, bytes, size);
    keep_bits(kept, size, bits);

    char* const end = name + kLongestAddress;
    char* at = name + std::string_view("ip:").copy(name, 3);
    if (size == kV4) {
        at = print_v4(at, kept);
    } else {
        inet_ntop(AF_INET6, kept, at, static_cast<socklen_t>(end - at));
        at += std::strlen(at);
    }
    if (bits != 8 * size) {
        *at++ = '/';
        at = std::to_chars(at, end, bits).ptr;
    }
    return static_cast<std::size_t>(at - name);
}

std::size_t print_plain_address(std::string_view bytes, char (&text)[kLongestPlain]) {
    static_assert(kLongestPlain == INET6_ADDRSTRLEN, "the longest address fits");
    if (bytes.size() != kV4 && bytes.size() != kV6) {
        return 0;
    }
    inet_ntop(bytes.size() == kV4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof(text));
    return std::strlen(text);
}

std::size_t parse_plain_address(std::string_view text, char (&bytes)[16]) {
    char copy[kLongestPlain];
    if (text.size() >= sizeof(copy) || text.find('\0') != std::string_view::npos) {
        return 0;
    }
    copy[text.copy(copy, text.size())] = '\0';
    if (inet_pton(AF_INET, copy, bytes) == 1) {
        return kV4;
    }
    return inet_pton(AF_INET6, copy, bytes) == 1 ? kV6 : 0;
}

}  // namespace rate_limit::identity
