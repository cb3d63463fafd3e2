// Clients' names as they stand in Redis and in unsent counts, where room is limited.
#pragma once

#include <cstddef>
#include <string_view>

namespace rate_limit {

constexpr std::size_t kLongestName = 128;

// Where short_name may put a digest: "sha256:" and its hexadecimal digits.
struct NameRoom {
    static constexpr std::size_t kSize = 7 + 64;
    char text[kSize];
};

// The name itself, or its SHA-256, in `room`, if it is longer than kLongestName bytes, could be taken for
// such a digest, or begins with "}". Not for a name that is short already: a digest would get a digest of its
// own.
std::string_view digest_name(std::string_view name, NameRoom* room);

// Whether a name is its own short name, seen at a glance.
inline bool is_short_name(std::string_view name) {
    return !name.empty() && name.size() <= kLongestName && name[0] != 's' && name[0] != '}';
}

inline std::string_view short_name(std::string_view name, NameRoom* room) {
    return is_short_name(name) ? name : digest_name(name, room);
}

// The same for one that may be short already.
inline std::string_view short_name(std::string_view name, bool is_short, NameRoom* room) {
    return is_short ? name : short_name(name, room);
}

// Whether a name is a digest as short_name makes them.
bool is_digest(std::string_view name);

// A client as operators are shown it and name it: by its name, or by the digest if that is long, or could be
// taken for one.
inline std::string_view shown_name(std::string_view name, NameRoom* room) {
    return name.size() > kLongestName || is_digest(name) ? short_name(name, room) : name;
}

}  // namespace rate_limit
