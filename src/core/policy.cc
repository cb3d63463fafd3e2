// Names of the algorithms, and what a policy promises a client.
#include "core/policy.h"

#include "core/arithmetic.h"

namespace rate_limit {
namespace {

constexpr const char* kNames[kAlgorithms] = {
    "token_bucket",   "leaky_bucket",    "gcra",        "fixed_window",
    "sliding_window", "sliding_buckets", "sliding_log",
};

}  // namespace

Micros window_of(const Policy& policy, const Rate& rate) {
    const std::uint32_t capacity = capacity_of(policy, rate);
    if (capacity == rate.count) {
        return rate.period;
    }
    return as_wait(divide_up(multiply(capacity, static_cast<std::uint64_t>(rate.period)), rate.count));
}

const char* algorithm_name(Algorithm algorithm) { return kNames[static_cast<unsigned>(algorithm)]; }

bool parse_algorithm(std::string_view name, Algorithm* algorithm) {
    for (unsigned i = 0; i < kAlgorithms; i++) {
        if (name == kNames[i]) {
            *algorithm = static_cast<Algorithm>(i);
            return true;
        }
    }
    return false;
}

}  // namespace rate_limit
