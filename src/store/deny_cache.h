// The deny cache of a limit: rejections by Redis, remembered in shared memory so that a client that keeps
// retrying is rejected without a call. If rejected requests count, each of them has to reach Redis, so none
// is remembered.
#pragma once

#include "store/limit.h"

namespace rate_limit {

// denied_client() for a client whose name may be long.
[[gnu::noinline]] inline std::uint64_t denied_long_client(const Limit& limit) {
    NameRoom room;
    return limit.zone->denials->hash(digest_name(limit.client, &room));
}

// The hash of a limit's client in the cache.
inline std::uint64_t denied_client(const Limit& limit) {
    return limit.is_short || is_short_name(limit.client) ? limit.zone->denials->hash(limit.client)
                                                         : denied_long_client(limit);
}

// Whether the cache rejects the limit at `now`, by the process's clock. If so, sets the limit's decision.
inline bool find_denial(Limit* limit, Micros now) {
    const Denials* denials = limit->zone->denials;
    if (denials == nullptr || limit->cost == 0 || limit->policy->count_all || !denials->any(now) ||
        !denials->find(denied_client(*limit), *limit->policy, limit->cost, now, &limit->decision,
                       &limit->decided_at)) {
        return false;
    }
    limit->decided_by = DecidedBy::kCache;
    return true;
}

// Remembers the limit's decision, a rejection. `now` is by the process's clock, `decided_at` by Redis's
// clock.
inline void remember_denial(const Limit& limit, Micros now, Micros decided_at) {
    if (limit.zone->denials != nullptr && !limit.policy->count_all) {
        limit.zone->denials->remember(denied_client(limit), *limit.policy, limit.cost, now, decided_at,
                                      limit.decision, limit.zone->deny_for);
    }
}

// Forgets the rejections of the limit's client, because a charge that may have caused them is refunded.
inline void forget_denial(const Limit& limit) {
    if (limit.zone->denials != nullptr) {
        limit.zone->denials->forget(denied_client(limit));
    }
}

}  // namespace rate_limit
