// Which store decided a limit, and why a limit did not apply.
#pragma once

#include <cstdint>

namespace rate_limit {

// Who decided.
enum class DecidedBy : std::uint8_t {
    kNobody,  // not decided: another limit had rejected before, or the zone is left out for on_error=open
    kMemory,
    kRedis,
    kCache,
    kFallback,  // memory, because Redis could not be asked
};
constexpr unsigned kDeciders = 5;

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

}  // namespace rate_limit
