// A client named by its address, or by the network that its address belongs to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rate_limit::identity {

// How many leading bits of an address name a client. One who has an IPv6 address has at least its /64.
struct Prefixes {
    std::uint8_t v4 = 32;
    std::uint8_t v6 = 64;
};

constexpr std::size_t kLongestAddress = 3 + 45 + 4;  // "ip:", an IPv6 address, "/128"

// Reads what follows "ip" in a source: nothing, or /V4,V6. False if it is neither.
bool parse_prefixes(std::string_view text, Prefixes* prefixes);

// Writes the name of an address of 4 or 16 bytes in network order, such as ip:192.0.2.7, ip:192.0.2.0/24 or
// ip:2001:db8:0:1::/64; returns its size. An IPv4 address that was mapped into IPv6 is the IPv4 address.
std::size_t print_address(const unsigned char* bytes, std::size_t size, const Prefixes& prefixes,
                          char (&name)[kLongestAddress]);

constexpr std::size_t kLongestPlain = 46;  // an IPv6 address and a null byte

// Writes an address of 4 or 16 bytes in network order, as $binary_remote_addr has it, in the usual notation,
// such as 192.0.2.7 or 2001:db8::1. Returns the size of the text, without the null byte; 0 if there are more
// or fewer bytes. Different bytes give different texts: a mapped IPv4 address stays one (::ffff:192.0.2.7).
std::size_t print_plain_address(std::string_view bytes, char (&text)[kLongestPlain]);

// Reads such a text. Returns how many bytes the address has, 4 or 16; 0 if the text is no address.
std::size_t parse_plain_address(std::string_view text, char (&bytes)[16]);

}  // namespace rate_limit::identity
