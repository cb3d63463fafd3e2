// Decides limits by leases, and passes what a lease needs to its lender.
#include "store/take_lease.h"

#include <algorithm>

namespace rate_limit {
namespace {

LeaseClient client_of(const Limit& limit, NameRoom* room) {
    const std::string_view name = short_name(limit.client, limit.is_short, room);
    return {name, limit.zone->leases->hash(name), limit.policy};
}

}  // namespace

LeaseUse take_lease(Limit* limit, Micros now, const Process& process) {
    const StoreZone& zone = *limit->zone;
    // Locations may have different bursts. Only the largest one is leased.
    const bool smaller =
        takes<kTakesBurst>(limit->policy->algorithm) && limit->policy->burst + 1 < limit->policy->ceiling;
    if (limit->cost == 0 || smaller) {
        return LeaseUse::kNone;
    }
    NameRoom room;
    const LeaseClient client = client_of(*limit, &room);
    LeaseTake take;
    zone.leases->take(client, zone.lease, limit->cost, now, process, &take);
    if (take.rest.amount != 0) {
        zone.lender->give_back(client, take.rest);
    }
    if (take.ask.amount != 0) {
        zone.lender->ask(client, take.ask);
    }
    if (take.use == LeaseUse::kNone) {
        return LeaseUse::kNone;
    }
    limit->decided_by = DecidedBy::kLease;
    limit->reason = kNoReason;
    limit->decision = take.decision;
    limit->decision.limit = capacity_of(*limit->policy, limit->policy->rates.rates[take.decision.rate]);
    limit->decision.remaining = std::min(limit->decision.remaining, limit->decision.limit);
    limit->decided_at = take.decided_at;
    limit->charged = take.use == LeaseUse::kTaken;
    limit->portion = take.portion;
    return take.use;
}

bool return_to_lease(const Limit& limit, std::uint64_t amount, const Process& process) {
    NameRoom room;
    return limit.zone->leases->put_back(client_of(limit, &room).hash, limit.portion, amount, process);
}

}  // namespace rate_limit
