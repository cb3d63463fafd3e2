// Charges limits to leases, and gives charges back to them.
#pragma once

#include "store/limit.h"

namespace rate_limit {

// Decides a limit by the lease of its client. With kNone, Redis has to decide, and the limit is unchanged.
// The zone of the limit has a lender. `now` is by the process's clock.
LeaseUse take_lease(Limit* limit, Micros now, const Process& process);

// Gives `amount` of a charge back to the lease that was charged. False if the units have ended, so that
// Redis has to give them back.
bool return_to_lease(const Limit& limit, std::uint64_t amount, const Process& process);

}  // namespace rate_limit
