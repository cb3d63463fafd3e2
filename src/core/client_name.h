// Names of clients in Redis and in unsent counts, where room is limited.
#pragma once

#include <cstddef>
#include <string_view>

namespace rate_limit {

constexpr std::size_t kLongestName = 128;

// Room for a digest of short_name: "sha256:" and its hexadecimal digits.
struct NameRoom {
    static constexpr std::size_t kSize = 7 + 64;
    char text[kSize];
};

// The name, or its SHA-256 in `room` if the name is longer than kLongestName bytes, starts like a digest, or
// begins with "}". Do not call it with a short name: the result for a digest is another digest.
std::string_view digest_name(std::string_view name, NameRoom* room);

// False if short_name may have to replace the name by a digest.
inline bool is_short_name(std::string_view name) {
    return !name.empty() && name.size() <= kLongestName && name[0] != 's' && name[0] != '}';
}

inline std::string_view short_name(std::string_view name, NameRoom* room) {
    return is_short_name(name) ? name : digest_name(name, room);
}

// The same for a name that is a short name already if `is_short`.
inline std::string_view short_name(std::string_view name, bool is_short, NameRoom* room) {
    return is_short ? name : short_name(name, room);
}

// Whether a name has the form of the digests of short_name.
bool is_digest(std::string_view name);

// The name of a client in the API, metrics and logs: its name, or the digest if the name is long or has the
// form of a digest.
inline std::string_view shown_name(std::string_view name, NameRoom* room) {
    return name.size() > kLongestName || is_digest(name) ? short_name(name, room) : name;
}

}  // namespace rate_limit
