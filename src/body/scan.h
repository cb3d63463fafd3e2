// Searches of text, sixteen bytes at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace rate_limit::body {

using Block = std::uint8_t __attribute__((vector_size(16)));
constexpr std::size_t kBlock = sizeof(Block);

inline Block load_block(const char* at) {
    Block block;
    std::memcpy(&block, at, sizeof(block));
    return block;
}

// The index of the first byte of a comparison that is not zero; kBlock if all are zero.
template <class Compared>
std::size_t first_hit(const Compared& hits) {
    std::uint64_t words[2];
    static_assert(sizeof(words) == sizeof(hits), "a block is two words");
    std::memcpy(words, &hits, sizeof(words));
    if ((words[0] | words[1]) == 0) {
        return kBlock;
    }
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const unsigned bit = words[0] != 0 ? static_cast<unsigned>(__builtin_ctzll(words[0]))
                                       : 64 + static_cast<unsigned>(__builtin_ctzll(words[1]));
#else
    const unsigned bit = words[0] != 0 ? static_cast<unsigned>(__builtin_clzll(words[0]))
                                       : 64 + static_cast<unsigned>(__builtin_clzll(words[1]));
#endif
    return bit / 8;
}

inline bool ends_plain_text(char c) { return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\'; }

// The first byte that is not plain text of a JSON string: a quote, a backslash or a control character; `end`
// if there is none.
inline const char* skip_plain_text(const char* at, const char* end) {
    while (static_cast<std::size_t>(end - at) >= kBlock) {
        const Block block = load_block(at);
        const std::size_t hit = first_hit((block < 0x20) | (block == '"') | (block == '\\'));
        at += hit;
        if (hit != kBlock) {
            return at;
        }
    }
    while (at != end && !ends_plain_text(*at)) {
        at++;
    }
    return at;
}

// Whether the text at `at` is NAME and a quote.
inline bool is_rest_of_key(const char* at, const char* end, std::string_view name) {
    return static_cast<std::size_t>(end - at) > name.size() && at[name.size()] == '"' &&
           std::memcmp(at, name.data(), name.size()) == 0;
}

// Whether the text of one line may have a member of this name. False is exact. A text with a backslash may
// have the name in another spelling.
inline bool may_have_member(const char* at, const char* end, std::string_view name) {
    const auto first = static_cast<std::uint8_t>(name[0]);
    const auto may_match = [&](const char* p) {
        return *p == '\\' || *p == '\r' || (*p == '"' && is_rest_of_key(p + 1, end, name));
    };
    while (static_cast<std::size_t>(end - at) > kBlock) {
        const Block block = load_block(at);
        const Block next = load_block(at + 1);
        const std::size_t hit =
            first_hit(((block == '"') & (next == first)) | (block == '\\') | (block == '\r'));
        at += hit;
        if (hit != kBlock) {
            if (may_match(at)) {
                return true;
            }
            at++;
        }
    }
    for (; at != end; at++) {
        if (may_match(at)) {
            return true;
        }
    }
    return false;
}

}  // namespace rate_limit::body
