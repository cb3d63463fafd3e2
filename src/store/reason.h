// Why a limit was decided by the fallback, or not at all.
#pragma once

#include "connection/error.h"
#include "statistics/decided_by.h"

namespace rate_limit {

// A reason is the number of a redis::Error, or one of these.
constexpr Reason kNoReason = 0;
constexpr Reason kNoSlot = redis::kErrors;      // all slots in which the client may be are in use
constexpr Reason kNoRate = redis::kErrors + 1;  // the value of rate=$variable is not a rate
constexpr unsigned kReasons = redis::kErrors + 2;
static_assert(kReasons <= kMostReasons, "zones count each reason");

inline Reason reason_of(redis::Error error) { return static_cast<Reason>(error); }

// One word for metrics and the API.
const char* reason_name(Reason reason);

}  // namespace rate_limit
