// The room that a client's state takes in a zone: an array of 64-bit words, all zero for a client never seen.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/policy.h"

namespace rate_limit {

// Two configurations of a zone share their state when their shapes are equal.
struct Shape {
    Algorithm algorithm;
    std::uint32_t rates;        // room for so many; sliding_log keeps one log for all
    std::uint32_t buckets;      // sliding_buckets: counters a rate, else 0
    std::uint32_t log_entries;  // sliding_log: times that are kept, else 0
    std::uint32_t log_bytes;    // sliding_log: bytes of one time, 4 or 6, else 0
    bool interval;              // one more word, for min_interval
    bool varied;                // rates differ between clients: one more word, for what the state weighs
};

constexpr std::uint32_t kMaxLogEntries = 1U << 20;
constexpr std::uint32_t kWideLogBytes = 6;

// The least shape that holds `policy`.
Shape shape_of(const Policy& policy);

// A shape for rates that differ between clients, with room for any `rates` of them and for logs of
// `log_entries` times, besides `policy`'s options.
Shape shape_of(const Policy& policy, std::uint32_t rates, std::uint32_t log_entries);

bool operator==(const Shape& a, const Shape& b);
inline bool operator!=(const Shape& a, const Shape& b) { return !(a == b); }

// Whether state of shape `shape` can hold `policy`.
bool holds(const Shape& shape, const Policy& policy);

// Whether the states of several rates are told apart by a word of marks after them: see places.h.
inline bool has_marks(const Shape& shape) { return shape.rates > 1; }

std::size_t words_per_rate(const Shape& shape);
std::size_t words_of(const Shape& shape);

// Where the word of marks is, that of min_interval and that of the weight.
std::size_t marks_index(const Shape& shape);
std::size_t interval_index(const Shape& shape);
std::size_t weight_index(const Shape& shape);

// Whether state can be carried from one shape to the other: the algorithm is the same and what a word means.
bool can_convert(const Shape& from, const Shape& to);

// Carries what `from` remembers over to `to`, which is all zero. The rates are those that each is used with;
// none at all means that they are not known.
void convert(const Shape& from_shape, const RateList& from_rates, const std::uint64_t* from,
             const Shape& to_shape, const RateList& to_rates, std::uint64_t* to);

}  // namespace rate_limit
