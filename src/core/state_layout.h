// The room that a client's state takes in a zone: an array of 64-bit words, all zero for a client never seen.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/policy.h"

namespace rate_limit {

// Two configurations of a zone share their state when their layouts are equal.
struct StateLayout {
    Algorithm algorithm;
    std::uint32_t rates;        // room for so many; sliding_log keeps one log for all
    std::uint32_t buckets;      // sliding_buckets: counters a rate, else 0
    std::uint32_t log_entries;  // sliding_log: times that are kept, else 0
    std::uint32_t log_bytes;    // sliding_log: bytes of one time, narrow or wide, else 0
    bool interval;              // one more word, for min_interval
    bool varied;                // rates differ between clients: one more word, for what the state weighs
};

constexpr std::uint32_t kNarrowLogBytes = 4;
constexpr std::uint32_t kWideLogBytes = 6;

// The least layout that holds `policy`.
StateLayout layout_of(const Policy& policy);

// A layout for rates that differ between clients, with room for any `rates` of them and for logs of
// `log_entries` times, besides `policy`'s options.
StateLayout layout_of(const Policy& policy, std::uint32_t rates, std::uint32_t log_entries);

bool operator==(const StateLayout& a, const StateLayout& b);
inline bool operator!=(const StateLayout& a, const StateLayout& b) { return !(a == b); }

// Whether state of layout `layout` can hold `policy`.
bool holds(const StateLayout& layout, const Policy& policy);

// Whether the states of several rates are told apart by a word of marks after them: see slots.h.
inline bool has_marks(const StateLayout& layout) { return layout.rates > 1; }

std::size_t words_per_rate(const StateLayout& layout);
std::size_t words_of(const StateLayout& layout);

// Where the word of marks is, that of min_interval and that of the weight.
std::size_t marks_index(const StateLayout& layout);
std::size_t interval_index(const StateLayout& layout);
std::size_t weight_index(const StateLayout& layout);

// Whether state can be carried from one layout to the other: the algorithm is the same and what a word means.
bool can_convert(const StateLayout& from, const StateLayout& to);

// Carries what `from` remembers over to `to`, which is all zero. The rates are those that each is used with;
// none at all means that they are not known.
void convert(const StateLayout& from_layout, const RateList& from_rates, const std::uint64_t* from,
             const StateLayout& to_layout, const RateList& to_rates, std::uint64_t* to);

}  // namespace rate_limit
