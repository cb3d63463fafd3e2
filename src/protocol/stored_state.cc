// Writes the value of a client's key by the same rules as lua/state.lua, and reads and writes logs.
#include "protocol/stored_state.h"

#include <algorithm>
#include <cstring>

#include "algorithms/algorithm_functions.h"
#include "core/bytes.h"
#include "protocol/redis_value.h"

namespace rate_limit {
namespace {

constexpr std::size_t kFlagsAt = 8;
constexpr std::size_t kLongHeader = 9;
constexpr std::uint64_t kTimeMask = (std::uint64_t{1} << 53) - 1;
static_assert(kLongestStored >= kLongHeader + 8 + kLogHeader + kMostWholeEntries * kWideLogBytes);

unsigned byte_at(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

std::uint64_t number_at(std::string_view text, std::size_t at, std::size_t bytes) {
    return little_endian(text.data() + at, bytes);
}

char* put_number(char* at, std::uint64_t number, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i++) {
        *at++ = static_cast<char>(number >> (i * 8));
    }
    return at;
}

// The entries of a log in a value: a ring, or an array, which is a ring whose oldest entry is the first.
struct Entries {
    std::string_view body;
    std::size_t bytes = 0;     // of an entry
    std::uint64_t room = 0;    // entries
    std::uint64_t head = 0;    // position of the oldest entry
    std::uint64_t size = 0;    // entries
    std::uint64_t newest = 0;  // time
    std::uint64_t shift = 0;   // entry = time + shift

    // By how much the entry at `index`, counted from the oldest, is older than the newest. The bytes that a
    // value lacks are zeros.
    std::uint64_t age(std::uint64_t index) const {
        const std::uint64_t at = (head + index) % room * bytes;
        const std::size_t left =
            at < body.size() ? std::min<std::size_t>(body.size() - at, bytes) : std::size_t{0};
        const std::uint64_t entry = left != 0 ? number_at(body, at, left) : 0;
        return (newest + shift - entry) & ((std::uint64_t{1} << (bytes * 8)) - 1);
    }
};

// See lua/log_ring.lua. False if the value is no ring.
bool open_ring(std::string_view value, Entries* entries, Micros* expiry, Micros* admitted) {
    if (value.size() < kLargeLogHeader || byte_at(value, kFlagsAt) != kLargeLogFlags) {
        return false;
    }
    entries->bytes = byte_at(value, kFlagsAt + 1) - kLargeLogEntry;
    entries->newest = number_at(value, 18, 8) & ((std::uint64_t{1} << kWindowBits) - 1);
    entries->shift = number_at(value, 26, 6);
    entries->room = number_at(value, 32, 4);
    entries->head = number_at(value, 36, 4);
    entries->size = number_at(value, 40, 4);
    entries->body = value.substr(kLargeLogHeader);
    if ((entries->bytes != kNarrowLogBytes && entries->bytes != kWideLogBytes) ||
        entries->room > kMaxLogEntries || entries->head >= entries->room || entries->size > entries->room) {
        return false;
    }
    *expiry = static_cast<Micros>(number_at(value, 0, 8) & kTimeMask);
    *admitted = static_cast<Micros>(number_at(value, 10, 8) & kTimeMask);
    return true;
}

// The log of a value that is no ring: the whole value, or what follows the head of a long value.
std::string_view log_of(std::string_view value, Micros* expiry, Micros* admitted) {
    if (!is_long_value(value)) {
        return value;
    }
    const unsigned flags = byte_at(value, kFlagsAt);
    const auto time = static_cast<Micros>(number_at(value, 0, 8) & kTimeMask);
    std::size_t at = kLongHeader;
    if ((flags & (kMaxRates - 1)) != 0) {
        return {};
    }
    if ((flags & kValueHasExpiry) == 0) {
        *admitted = time;
        return value.substr(at);
    }
    if ((flags & kValueHasInterval) != 0) {
        if (value.size() < at + 8) {
            return {};
        }
        *admitted = static_cast<Micros>(number_at(value, at, 8) & kTimeMask);
        at += 8;
    }
    *expiry = time;
    return value.substr(at);
}

bool open_array(std::string_view log, Entries* entries) {
    if (log.size() < kLogHeader) {
        return false;
    }
    entries->bytes = byte_at(log, 0);
    if ((entries->bytes != kNarrowLogBytes && entries->bytes != kWideLogBytes) ||
        (log.size() - kLogHeader) % entries->bytes != 0) {
        return false;
    }
    entries->newest = number_at(log, 1, 8) & ((std::uint64_t{1} << kWindowBits) - 1);
    entries->body = log.substr(kLogHeader);
    entries->size = entries->body.size() / entries->bytes;
    entries->room = std::max<std::uint64_t>(entries->size, 1);
    return true;
}

// Keeps the newest entries whose age fits an entry of the layout.
void read_entries(const StateLayout& layout, const Entries& entries, std::uint64_t* state) {
    const std::uint64_t mask = (std::uint64_t{1} << (layout.log_bytes * 8)) - 1;
    std::uint64_t kept = std::min<std::uint64_t>(entries.size, layout.log_entries);
    while (kept > 0 && entries.age(entries.size - kept) > mask) {
        kept--;
    }
    char* at = reinterpret_cast<char*>(state + 2);
    for (std::uint64_t i = entries.size - kept; i < entries.size; i++) {
        at = put_number(at, entries.newest - entries.age(i), layout.log_bytes);
    }
    state[0] = entries.newest;
    state[1] = kept << 32;
}

bool decode_log(const StateLayout& layout, std::string_view value, std::uint64_t* state, StoredForm* form) {
    std::fill_n(state, words_of(layout), 0);
    Entries entries;
    Micros admitted = 0;
    Micros until = 0;
    const bool opened = open_ring(value, &entries, &until, &admitted) ||
                        open_array(log_of(value, &until, &admitted), &entries);
    if (opened) {
        read_entries(layout, entries, state);
    }
    form->expiry = until;
    form->log = opened;
    if (layout.interval) {
        state[interval_index(layout)] = static_cast<std::uint64_t>(admitted);
    }
    return opened;
}

char* put_log(const StateLayout& layout, const std::uint64_t* state, char* at) {
    const std::uint64_t size = state[1] >> 32;
    at = put_number(at, layout.log_bytes, 1);
    at = put_number(at, state[0], 8);
    const std::uint64_t head = state[1] & 0xffffffff;
    const char* ring = reinterpret_cast<const char*>(state + 2);
    const std::uint64_t first = std::min(size, layout.log_entries - head);
    std::memcpy(at, ring + head * layout.log_bytes, first * layout.log_bytes);
    at += first * layout.log_bytes;
    std::memcpy(at, ring, (size - first) * layout.log_bytes);
    return at + (size - first) * layout.log_bytes;
}

std::uint64_t counter_of(const StateLayout& layout, const std::uint64_t* words, std::size_t index) {
    return layout.large ? words[2 + index]
                        : static_cast<std::uint32_t>(words[1 + (index + 1) / 2] >> ((index + 1) % 2 * 32));
}

// Writes a ring of sliding_buckets; nothing if the client has none.
char* put_ring(const StateLayout& layout, const std::uint64_t* words, char* at) {
    if ((words[0] | words[1]) == 0) {
        return at;
    }
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < layout.buckets; i++) {
        most = std::max(most, counter_of(layout, words, i));
    }
    const std::size_t bytes = most < 256 ? 1 : most < 65536 ? 2 : most >> 32 == 0 ? 4 : 7;
    at = put_number(at, words[0], 8);
    at = put_number(at, layout.buckets, 1);
    at = put_number(at, words[1], 4);
    for (std::size_t i = 0; i < layout.buckets; i++) {
        at = put_number(at, counter_of(layout, words, i), bytes);
    }
    return at;
}

// Whether a state of a large layout needs kLargeState bytes.
bool needs_large_state(const StateLayout& layout, const std::uint64_t* words) {
    if (!layout.large) {
        return false;
    }
    if (is_bucket(layout.algorithm)) {
        return words[2] >> 31 != 0;
    }
    return ((has_state<StateKind::kCount>(layout.algorithm) ? words[1] : words[1] | words[2]) >> 32) != 0;
}

// Writes the state of a rate, not of a ring or a log; nothing if there is none. Returns the end.
char* put_words(const StateLayout& layout, const std::uint64_t* words, char* at) {
    std::uint64_t small[2] = {words[0], words[1]};
    if (needs_large_state(layout, words)) {
        const bool bucket = is_bucket(layout.algorithm);
        const bool single = has_state<StateKind::kCount>(layout.algorithm);
        at = put_little_endian<8>(at, words[0]);
        at = put_little_endian<1>(at, 0);
        at = put_little_endian<7>(at, bucket ? words[2] : words[1]);
        return put_little_endian<7>(at, bucket ? words[1] : single ? 0 : words[2]);
    }
    if (layout.large) {
        StateLayout narrow = layout;
        narrow.large = false;
        functions_of(layout.algorithm).convert(layout, words, narrow, small);
    }
    if ((small[0] | small[1]) == 0) {
        return at;
    }
    at = put_little_endian<8>(at, small[0]);
    at = put_little_endian<4>(at, small[1]);
    return small[1] >> 32 != 0 ? put_little_endian<4>(at, small[1] >> 32) : at;
}

char* put_state(const StateLayout& layout, const std::uint64_t* words, char* at) {
    if (has_state<StateKind::kLog>(layout.algorithm)) {
        return put_log(layout, words, at);
    }
    return has_state<StateKind::kRing>(layout.algorithm) ? put_ring(layout, words, at)
                                                         : put_words(layout, words, at);
}

struct Extent {
    std::uint32_t slots = 0;  // without trailing slots that were never used
    std::size_t length = kShortState;
};

Extent extent_of(const StateLayout& layout, const std::uint64_t* state) {
    char room[kLargeState];
    const std::size_t words = words_per_rate(layout);
    const std::uint64_t marks = has_marks(layout) ? state[marks_index(layout)] : 0;
    const bool fixed =
        !has_state<StateKind::kLog>(layout.algorithm) && !has_state<StateKind::kRing>(layout.algorithm);
    Extent extent;
    for (std::uint32_t i = 0; i < layout.rates; i++) {
        const std::uint64_t* at = state + i * words;
        const std::size_t length = fixed ? static_cast<std::size_t>(put_words(layout, at, room) - room) : 0;
        const bool used = fixed ? length != 0 : (at[0] | at[1]) != 0;
        extent.length = std::max(extent.length, length);
        extent.slots = used || (marks >> (i * 8) & 0xff) != 0 ? i + 1 : extent.slots;
    }
    return extent;
}

// Writes what precedes the slots of a long value.
char* put_head(const StateLayout& layout, const std::uint64_t* state, const StoredForm& form,
               std::size_t length, char* at) {
    const bool expires = has_expiry(layout);
    const std::uint64_t admitted = layout.interval ? state[interval_index(layout)] : 0;
    const unsigned flags = kValueIsLong | (layout.rates - 1) | (layout.interval ? kValueHasInterval : 0U) |
                           (expires ? kValueHasExpiry : 0U) |
                           (length == kWideState    ? kValueIsWide
                            : length == kLargeState ? kValueIsLarge
                                                    : 0U);
    at = put_number(at, expires ? static_cast<std::uint64_t>(form.expiry) : admitted, 8);
    at = put_number(at, flags, 1);
    return expires && layout.interval ? put_number(at, admitted, 8) : at;
}

std::size_t encode_long(const StateLayout& layout, const std::uint64_t* state, const StoredForm& form,
                        char* start) {
    const Extent extent = extent_of(layout, state);
    char* at = put_head(layout, state, form, extent.length, start);
    if (has_state<StateKind::kLog>(layout.algorithm)) {
        at = form.log ? put_log(layout, state, at) : at;
        return static_cast<std::size_t>(at - start);
    }
    const bool ring = has_state<StateKind::kRing>(layout.algorithm);
    const std::size_t prefix = ring ? 2 : extent.length == kLargeState ? 1 : 0;
    const std::uint32_t slots = std::max(extent.slots, form.marked ? 1U : 0U);
    for (std::uint32_t i = 0; i < slots; i++) {
        at = has_marks(layout) ? put_number(at, state[marks_index(layout)] >> (i * 8), 1) : at;
        char* begin = at + prefix;
        char* end = put_state(layout, state + i * words_per_rate(layout), begin);
        put_number(at, static_cast<std::uint64_t>(end - begin), prefix);
        at = end;
        // States of a fixed length are filled up with zeros.
        for (; prefix == 0 && at < begin + extent.length; at++) {
            *at = 0;
        }
    }
    return static_cast<std::size_t>(at - start);
}

}  // namespace

bool is_storable(const StateLayout& layout) { return layout.log_entries <= kMostWholeEntries; }

bool has_expiry(const StateLayout& layout) {
    return layout.rates > 1 || (layout.varied && has_state<StateKind::kLog>(layout.algorithm));
}

bool is_long_value(std::string_view value) {
    return value.size() > kFlagsAt && value.size() != kShortState && value.size() != kWideState &&
           (byte_at(value, kFlagsAt) & kValueIsLong) != 0;
}

bool decode_stored(const Policy& policy, const StateLayout& layout, std::string_view value,
                   std::uint64_t* state, StoredForm* form) {
    *form = {0, false, false};
    if (has_state<StateKind::kLog>(layout.algorithm)) {
        return decode_log(layout, value, state, form);
    }
    const bool decoded = decode_value(policy, layout, value, state);
    if (decoded && is_long_value(value)) {
        const unsigned flags = byte_at(value, kFlagsAt);
        form->marked = !has_marks(layout) && (flags & (kMaxRates - 1)) != 0;
        form->expiry =
            (flags & kValueHasExpiry) != 0 ? static_cast<Micros>(number_at(value, 0, 8) & kTimeMask) : 0;
    }
    return decoded;
}

std::size_t encode_stored(const StateLayout& layout, const std::uint64_t* state, const StoredForm& form,
                          char* at) {
    if (has_expiry(layout) || layout.interval) {
        return encode_long(layout, state, form, at);
    }
    return static_cast<std::size_t>(put_state(layout, state, at) - at);
}

}  // namespace rate_limit
