// Searches of text, with SSE2 where the processor has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace rate_limit::body {

constexpr std::size_t kBlock = 64;  // bytes that are searched at once

inline bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20; }

inline bool is_bracket(char c) { return c == '{' || c == '}' || c == '[' || c == ']'; }

// Where a block has the characters that structure JSON: bit i is for the byte i.
struct BlockMarks {
    std::uint64_t quotes;
    std::uint64_t backslashes;
    std::uint64_t brackets;
};

inline BlockMarks find_marks(const char* at) {
    BlockMarks marks = {};
#if defined(__SSE2__)
    const auto bits = [](__m128i compared, int i) {
        return static_cast<std::uint64_t>(static_cast<unsigned>(_mm_movemask_epi8(compared))) << (16 * i);
    };
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16 * i));
        // Without bit 0x20, { and [ are the same, and } and ].
        const __m128i folded = _mm_or_si128(text, _mm_set1_epi8(0x20));
        marks.quotes |= bits(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')), i);
        marks.backslashes |= bits(_mm_cmpeq_epi8(text, _mm_set1_epi8('\\')), i);
        marks.brackets |= bits(_mm_or_si128(_mm_cmpeq_epi8(folded, _mm_set1_epi8('{')),
                                            _mm_cmpeq_epi8(folded, _mm_set1_epi8('}'))),
                               i);
    }
#else
    for (std::size_t i = 0; i < kBlock; i++) {
        marks.quotes |= std::uint64_t{at[i] == '"'} << i;
        marks.backslashes |= std::uint64_t{at[i] == '\\'} << i;
        marks.brackets |= std::uint64_t{is_bracket(at[i])} << i;
    }
#endif
    return marks;
}

// False if find_marks() would find nothing in a block. Takes half as long.
inline bool may_have_marks([[maybe_unused]] const char* at) {
#if defined(__SSE2__)
    // With bit 0x20, the brackets and the backslash are in 0x7b to 0x7d. So is |, which is no mark.
    __m128i any = _mm_setzero_si128();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16 * i));
        const __m128i distance = _mm_sub_epi8(_mm_or_si128(text, _mm_set1_epi8(0x20)), _mm_set1_epi8('{'));
        const __m128i others = _mm_cmpeq_epi8(_mm_min_epu8(distance, _mm_set1_epi8(2)), distance);
        any = _mm_or_si128(any, _mm_or_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')), others));
    }
    return _mm_movemask_epi8(any) != 0;
#else
    return true;
#endif
}

// The bytes of a block that a backslash before them escapes. Bit 64, in `*carry`, is for the byte after the
// block; `*carry` tells whether the first byte is escaped.
inline std::uint64_t find_escaped(std::uint64_t backslashes, bool* carry) {
    std::uint64_t escaped = *carry ? 1 : 0;
    std::uint64_t left = backslashes & ~escaped;
    if ((left & (left << 1)) == 0) {
        *carry = (left >> 63) != 0;
        return escaped | left << 1;
    }
    bool after = false;
    while (left != 0) {
        const std::uint64_t first = left & (~left + 1);
        escaped |= first << 1;
        left &= ~(first | first << 1);
        after = first >> 63 != 0;
    }
    *carry = after;
    return escaped;
}

// Bit i is set if an odd number of the bits 0 to i is set.
inline std::uint64_t parities(std::uint64_t bits) {
#pragma GCC unroll 6
    for (int distance = 1; distance < 64; distance *= 2) {
        bits ^= bits << distance;
    }
    return bits;
}

// The first byte that is not plain text of a JSON string: a quote, a backslash or a control character; `end`
// if there is none.
inline const char* skip_plain_text(const char* at, const char* end) {
#if defined(__SSE2__)
    for (; end - at >= 16; at += 16) {
        const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
        const __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(text, _mm_set1_epi8(0x1f)), text);
        const __m128i special =
            _mm_or_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')), _mm_cmpeq_epi8(text, _mm_set1_epi8('\\')));
        const int mask = _mm_movemask_epi8(_mm_or_si128(control, special));
        if (mask != 0) {
            return at + __builtin_ctz(static_cast<unsigned>(mask));
        }
    }
#endif
    while (at != end && !is_control(*at) && *at != '"' && *at != '\\') {
        at++;
    }
    return at;
}

// Whether `at` may begin a member of this name, as it is or with \u escapes. The name must be ASCII and have
// no characters that JSON escapes in another way.
inline bool may_begin_member(const char* at, const char* end, std::string_view name) {
    const auto left = static_cast<std::size_t>(end - at);
    if (*at == '"') {
        return left > name.size() + 1 && at[name.size() + 1] == '"' &&
               std::memcmp(at + 1, name.data(), name.size()) == 0;
    }
    return *at == '\\' && left > 1 && at[1] == 'u' &&
           (left < 5 || (at[2] == '0' && at[3] == '0' && at[4] < '8'));
}

// The first place where may_begin_member() is true; `end` if there is none.
inline const char* find_member(const char* at, const char* end, std::string_view name) {
#if defined(__SSE2__)
    const __m128i first = _mm_set1_epi8(name[0]);
    const auto find_marks_of_member = [&](const char* from) {
        const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        const __m128i next = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 1));
        const __m128i member =
            _mm_and_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')), _mm_cmpeq_epi8(next, first));
        return _mm_or_si128(member, _mm_cmpeq_epi8(text, _mm_set1_epi8('\\')));
    };
    for (; end - at > 32; at += 32) {
        const __m128i low = find_marks_of_member(at);
        const __m128i high = find_marks_of_member(at + 16);
        if (_mm_movemask_epi8(_mm_or_si128(low, high)) == 0) {
            continue;
        }
        auto mask = static_cast<unsigned>(_mm_movemask_epi8(low)) |
                    static_cast<unsigned>(_mm_movemask_epi8(high)) << 16;
        for (; mask != 0; mask &= mask - 1) {
            const char* const hit = at + __builtin_ctz(mask);
            if (may_begin_member(hit, end, name)) {
                return hit;
            }
        }
    }
#endif
    while (at != end && !may_begin_member(at, end, name)) {
        at++;
    }
    return at;
}

}  // namespace rate_limit::body
