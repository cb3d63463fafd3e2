// The whole state of a client in Redis, as the scripts read and write it: the words of a state, and the
// expiry that some values have. protocol/redis_value.h describes values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "algorithms/state_layout.h"

namespace rate_limit {

// The most words of a state that these functions read and write.
constexpr std::size_t kMostStoredWords = kMaxRates * (2 + kMaxBuckets) + 3;

// The most bytes of a value.
constexpr std::size_t kLongestStored = 17 + kMaxRates * (3 + kRingHeader + kMaxBuckets * 7);

// Whether these functions read and write the states of a layout: all but large logs.
bool is_storable(const StateLayout& layout);

// Whether a value has an expiry, so that it may be needed for longer than its rates tell.
bool has_expiry(const StateLayout& layout);

// Whether a value has more than the state of a single rate.
bool is_long_value(std::string_view value);

// What a value has beside the words of its state.
struct StoredForm {
    Micros expiry;  // the time until which the value is needed; 0 if the value does not tell
    bool log;       // there is a log, perhaps without entries
    bool marked;    // the only slot has the mark of a period, since the value had several slots
};

// Decodes a value as the scripts do, also that of a sliding_log. `state` has room for words_of(layout) words.
// False, with all words zero, if the policy's algorithm cannot have written the value.
bool decode_stored(const Policy& policy, const StateLayout& layout, std::string_view value,
                   std::uint64_t* state, StoredForm* form);

// Writes the value that the scripts would write for a state to `at`, which has room for kLongestStored
// bytes. Returns its size.
std::size_t encode_stored(const StateLayout& layout, const std::uint64_t* state, const StoredForm& form,
                          char* at);

}  // namespace rate_limit
