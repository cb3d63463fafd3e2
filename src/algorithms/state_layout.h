// The state of a client in a zone: an array of 64-bit words, all zero for an unknown client.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/policy.h"

namespace rate_limit {

// Two configurations of a zone share their state when their layouts are equal.
struct StateLayout {
    Algorithm algorithm;
    std::uint32_t rates;        // number of rate slots; sliding_log has one log for all rates
    std::uint32_t buckets;      // sliding_buckets: counters of each rate, else 0
    std::uint32_t log_entries;  // sliding_log: most entries, else 0
    std::uint32_t log_bytes;    // sliding_log: bytes of one time, narrow or wide, else 0
    bool interval;              // one more word, for min_interval
    bool varied;                // rates differ between clients: one more word, for the weight of the state
    bool large;                 // counts above kMaxSmallCount; false for sliding_log
};

constexpr std::uint32_t kNarrowLogBytes = 4;
constexpr std::uint32_t kWideLogBytes = 6;

// Whether a count of a policy, or what a client may owe, is above kMaxSmallCount; false for sliding_log.
bool needs_large(const Policy& policy);

// The smallest layout that holds `policy`.
StateLayout layout_of(const Policy& policy);

// A layout for rates that differ between clients, with room for `rates` rates of counts up to `max_count`, or
// for logs of `log_entries` entries, and for the options of `policy`.
StateLayout layout_of(const Policy& policy, std::uint32_t rates, std::uint32_t log_entries,
                      std::uint64_t max_count = kMaxSmallCount);

bool operator==(const StateLayout& a, const StateLayout& b);
inline bool operator!=(const StateLayout& a, const StateLayout& b) { return !(a == b); }

// Whether state of layout `layout` can hold `policy`.
bool holds(const StateLayout& layout, const Policy& policy);

// Whether a word of marks follows the states of the rates: see rate_slots.h.
inline bool has_marks(const StateLayout& layout) { return layout.rates > 1; }

std::size_t words_per_rate(const StateLayout& layout);
std::size_t words_of(const StateLayout& layout);

// The indices of the words of marks, of min_interval and of the weight.
std::size_t marks_index(const StateLayout& layout);
std::size_t interval_index(const StateLayout& layout);
std::size_t weight_index(const StateLayout& layout);

// Whether convert() works for these layouts: the algorithm and the meaning of each word are the same.
bool can_convert(const StateLayout& from, const StateLayout& to);

// Converts the state `from` to another layout. `to` is all zero. `from_rates` and `to_rates` are the rates
// that the states are used with; no rates means unknown.
void convert(const StateLayout& from_layout, const RateList& from_rates, const std::uint64_t* from,
             const StateLayout& to_layout, const RateList& to_rates, std::uint64_t* to);

}  // namespace rate_limit
