// Which store decided a limit, and why a limit did not apply.
#pragma once

#include <cstdint>

namespace rate_limit {

enum class DecidedBy : std::uint8_t {
    kNobody,  // not decided: another limit rejected the request before, or on_error=open applies
    kMemory,
    kRedis,
    kCache,
    kFallback,  // memory, because Redis does not answer
    kLease,     // memory, by units that Redis has granted before
};
constexpr unsigned kDeciders = 6;

// One word for variables, metrics and the API; empty for kNobody.
const char* decided_by_name(DecidedBy decided_by);

// Why the fallback decided a limit, or nothing did: a number that store/reason.h defines.
using Reason = std::uint8_t;
constexpr unsigned kMostReasons = 32;

// Why a limit did not apply to a request.
enum class Bypass : std::uint8_t { kEmptyKey, kRateOff };
constexpr unsigned kBypasses = 2;

// One word for metrics.
const char* bypass_name(Bypass bypass);

// How a charge was corrected when its request had ended.
enum class Settled : std::uint8_t {
    kSame,  // the cost was right
    kMore,  // more was charged
    kLess,  // a part was given back
    kKept,  // not known: no valid cost, or no Redis
};
constexpr unsigned kSettledResults = 4;

// One word for metrics.
const char* settled_name(unsigned settled);

}  // namespace rate_limit
