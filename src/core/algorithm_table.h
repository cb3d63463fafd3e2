// The table of algorithms. To add an algorithm, add a row here, algorithms/NAME.cc and lua/NAME.lua.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rate_limit {

// What the state of a client consists of, in 64-bit words.
enum class StateKind : std::uint8_t {
    kLevel,   // for each rate 2 words: a level that time lowers, see bucket.cc
    kCount,   // for each rate 2 words: the end of a window (pack_window) and a count below 2^32
    kCounts,  // for each rate 2 words: the end of a window (pack_window) and 64 bits of counts
    kRing,    // for each rate a ring of Policy::buckets counters, see sliding_buckets.cc
    kLog,     // for all rates one log of times, see sliding_log.cc
};

// Options of the directives that not every algorithm takes.
enum AlgorithmOption : unsigned {
    kTakesNothing = 0,
    kTakesBurst = 1,     // Policy::burst; the limit is then burst + 1
    kTakesCapacity = 2,  // Policy::capacity; the limit is then the capacity
    kTakesDelay = 4,    // Policy::delay; the excess of a decision is then what waits behind the first request
    kTakesBuckets = 8,  // Policy::buckets
    kTakesAlign = 16,   // Policy::align_first
};

// A row is: enumerator without its k, name, state, options. The functions of an algorithm are
// k<Enumerator>Functions, see algorithm_functions.h. The order is that of the numbers in Redis, so add
// new rows at the end. scripts/embed reads the first two columns.
#define RATE_LIMIT_ALGORITHMS(ROW)                                      \
    ROW(TokenBucket, "token_bucket", kLevel, kTakesCapacity)            \
    ROW(LeakyBucket, "leaky_bucket", kLevel, kTakesBurst | kTakesDelay) \
    ROW(Gcra, "gcra", kLevel, kTakesBurst)                              \
    ROW(FixedWindow, "fixed_window", kCount, kTakesAlign)               \
    ROW(SlidingWindow, "sliding_window", kCounts, kTakesNothing)        \
    ROW(SlidingBuckets, "sliding_buckets", kRing, kTakesBuckets)        \
    ROW(SlidingLog, "sliding_log", kLog, kTakesNothing)

enum class Algorithm : std::uint8_t {
#define ROW(enumerator, name, state, options) k##enumerator,
    RATE_LIMIT_ALGORITHMS(ROW)
#undef ROW
};

struct AlgorithmTraits {
    std::string_view name;  // ends with a null byte
    StateKind state;
    unsigned options;  // AlgorithmOption
};

inline constexpr AlgorithmTraits kAlgorithmTraits[] = {
#define ROW(enumerator, name, state, options) {name, StateKind::state, options},
    RATE_LIMIT_ALGORITHMS(ROW)
#undef ROW
};
constexpr unsigned kAlgorithms = sizeof(kAlgorithmTraits) / sizeof(kAlgorithmTraits[0]);

// The next two compile to comparisons with the few algorithms that remain, not to a load from the table.
template <StateKind kState>
constexpr bool has_state(Algorithm algorithm) {
    bool has = false;
#define ROW(enumerator, name, state, options) \
    has = has || (StateKind::state == kState && algorithm == Algorithm::k##enumerator);
    RATE_LIMIT_ALGORITHMS(ROW)
#undef ROW
    return has;
}

template <AlgorithmOption kOption>
constexpr bool takes(Algorithm algorithm) {
    bool has = false;
#define ROW(enumerator, name, state, options) \
    has = has || (((options)&kOption) != 0 && algorithm == Algorithm::k##enumerator);
    RATE_LIMIT_ALGORITHMS(ROW)
#undef ROW
    return has;
}

// Whether the used requests are a level that time lowers.
constexpr bool is_bucket(Algorithm algorithm) { return has_state<StateKind::kLevel>(algorithm); }

const char* algorithm_name(Algorithm algorithm);
bool parse_algorithm(std::string_view name, Algorithm* algorithm);

// Names of algorithms for a message, such as "leaky_bucket or gcra".
struct AlgorithmNames {
    static constexpr std::size_t kSize = 256;
    char text[kSize];  // ends with a null byte
};

// All names, the last after " or ".
AlgorithmNames all_algorithm_names();

// The names of the algorithms that take `option`, the last after " or ".
AlgorithmNames names_of_algorithms_taking(AlgorithmOption option);

}  // namespace rate_limit
