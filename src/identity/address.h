// Names of clients by address or network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rate_limit::identity {

// The number of leading bits of an address that identify a client. A client usually has a whole IPv6 /64.
struct Prefixes {
    std::uint8_t v4 = 32;
    std::uint8_t v6 = 64;
};

constexpr std::size_t kLongestAddress = 3 + 45 + 4;  // "ip:", an IPv6 address, "/128"

// Parses the part after "ip" of a key source: nothing, or /V4,V6. False if it is neither.
bool parse_prefixes(std::string_view text, Prefixes* prefixes);

// Writes the name of an address of 4 or 16 bytes in network order, such as ip:192.0.2.7, ip:192.0.2.0/24 or
// ip:2001:db8:0:1::/64; returns its size. An IPv4-mapped IPv6 address is written as the IPv4 address.
std::size_t print_address(const unsigned char* bytes, std::size_t size, const Prefixes& prefixes,
                          char (&name)[kLongestAddress]);

constexpr std::size_t kLongestPlain = 46;  // an IPv6 address and a null byte

// Writes an address of 4 or 16 bytes in network order, as in $binary_remote_addr, in the usual notation, such
// as 192.0.2.7 or 2001:db8::1. Returns the size of the text, without the null byte; 0 for another number of
// bytes. Different bytes give different texts: an IPv4-mapped address stays one (::ffff:192.0.2.7).
std::size_t print_plain_address(std::string_view bytes, char (&text)[kLongestPlain]);

// Parses such a text. Returns the number of bytes of the address, 4 or 16; 0 if the text is not an address.
std::size_t parse_plain_address(std::string_view text, char (&bytes)[16]);

}  // namespace rate_limit::identity
