// How much of a client's quota an instance may lease, and how long it may use a leased portion.
//
// A portion is charged in Redis before it is used, so it must not be used at a time at which the limit would
// have refused it. Two rules follow.
//
// Windows. The units of a portion are used only in the window in which Redis has charged them (for
// sliding_buckets: the sub-window). At the time of use, the counts of that window are what Redis has counted,
// or less, and the windows before weigh what they weighed at the charge, or less. So the limit would have
// admitted each use. Unused units are given back to their window.
//
// Buckets. Let C be the capacity, r the rate, and L(s) the level in Redis at the time s. Redis admits only up
// to C, so in an interval from s to t it charges at most C - L(s) + r(t - s). The instances also admit what
// they have leased before s, U(s). The promise of a bucket, C + r(t - s), therefore holds if U(s) <= L(s).
// Imagine L as a queue of units that drain in the order of their charges. A portion of N units, after which
// Redis reports that the whole quota is back after D, has the last N places: its last unit drains at D, the
// one before at D - 1/r, and so on. A time x later, (D - x)r units of the queue up to this portion are left,
// and of the portion min(N, (D - x)r). If each instance uses no more of a portion than that, oldest portions
// first, then all units that may still be used have a place in the queue, each its own: U(s) <= L(s). Units
// that end this way are not lost: they have drained from Redis. To give units back would move later portions
// of other instances forward in the queue, so nothing is given back. Instead, a portion is at most what the
// rate refills in twice kLeaseHorizon.
//
// With several rates, the reply tells D of the rate with the least remaining quota only. If all rates have
// the same capacity, that of the slowest rate is the only one that matters: its level is the highest. If
// another rate is reported, the levels are equal, and the D of the reported rate is the shorter one. Rates
// with different capacities cannot be leased.
//
// All durations count from before the call was sent, by a clock of this machine that is never set back. Redis
// decided later, so the real ends are later than those computed here.
#pragma once

#include <cstdint>

#include "core/decision.h"
#include "core/policy.h"

namespace rate_limit {

// lease=
struct LeaseSize {
    std::uint64_t amount = 0;  // units, or percent of the limit; 0 if nothing is leased
    bool is_percent = false;
};

// A portion lasts about this long at the client's pace.
constexpr Micros kLeaseHorizon = 20'000;

// Units of a bucket are used within this time. Unused units of a window are given back after it.
constexpr Micros kLeaseIdle = 100'000;

// Why limits of this policy cannot be leased, without a full stop; null if they can.
const char* lease_objection(const Policy& policy);

// The most units that an instance may hold of a client; below 2 if it leases nothing.
std::uint64_t most_leased(const Policy& policy, const LeaseSize& size);

// How long a portion may be used.
struct LeaseHolding {
    Micros window_end;  // by Redis's clock: the units are of the window that ends then; 0 for a bucket
    Micros lasts;       // from when the call was sent
    Micros drains;      // a bucket: D above, from when the call was sent; 0 for a window
};

// The holding of a portion that `decision` has granted at `time` by Redis's clock.
LeaseHolding holding_of(const Policy& policy, const Decision& decision, Micros time);

}  // namespace rate_limit
