// Who decided a limit, and why somebody else did not.
#pragma once

#include <cstdint>

#include "redis/error.h"

namespace rate_limit {

// Who decided.
enum class Source : std::uint8_t {
    kNobody,  // not decided: another limit had rejected before, or the zone is left out for on_error=open
    kMemory,
    kRedis,
    kCache,
    kFallback,  // memory, because Redis could not be asked
};
constexpr unsigned kSources = 5;

// One word for variables, metrics and the API; empty for kNobody.
const char* source_name(Source source);

// Why a limit was not decided by whom it should be: the number of a redis::Error, or one of these.
using Reason = std::uint8_t;
constexpr Reason kNoReason = 0;
constexpr Reason kNoSlot = redis::kErrors;      // every slot that the client may have was in use
constexpr Reason kNoRate = redis::kErrors + 1;  // the rate of rate=$variable is none
constexpr unsigned kReasons = redis::kErrors + 2;

inline Reason reason_of(redis::Error error) { return static_cast<Reason>(error); }

// One word for metrics and the API.
const char* reason_name(Reason reason);

// Why a limit did not apply to a request.
enum class Bypass : std::uint8_t { kEmptyKey, kRateOff };
constexpr unsigned kBypasses = 2;

// One word for metrics.
const char* bypass_name(Bypass bypass);

}  // namespace rate_limit
