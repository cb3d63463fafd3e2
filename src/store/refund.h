// Gives back or corrects what a request was charged. The only way to change a charge, while limits are still
// being decided and afterwards.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

#include "core/share.h"
#include "memory/table_check.h"
#include "store/limit.h"

namespace rate_limit {

// Refunds the limits that are charged, any number of them. Clears Limit::charged of each refunded limit, so
// that no charge is refunded twice, and adds the refund to the remaining requests of its decision. What no
// longer counts of a charge is not given back, nor is a charge of a zone that counts rejected requests. The
// deny cache forgets the rejections of the clients, because the charge may have caused them.
//
// Never waits: limits in Redis, and charges that a sync call has told Redis, are refunded by one of the next
// calls, and stay charged if Redis does not answer.
void refund(Limit* limits, std::size_t count, const Process& process, Micros (*wall)());

// Corrects the charge of a limit whose request turned out to cost `actual`, once: clears Limit::charged. What
// was too much is given back as far as it still counts; what was too little is charged even if it does not
// fit, up to debt_of() the policy. Never waits. False if the charge stays as it is, because Redis or a slot
// is not available.
bool settle(Limit* limit, std::uint64_t actual, const Process& process, Micros (*wall)());

// The next functions correct what a client has used by the limit's cost, without a charge of a request. They
// change only the memory of this instance. The zone has a table.

// Charges the cost even if it does not fit, up to debt_of() the policy. In a zone of Redis, the table is the
// fallback. Redis is charged later if the table has unsent counts. False if there is no slot for the client.
bool charge_here(const Limit& limit, const Process& process, Micros (*wall)());

// Gives back the newest requests that still count. Returns how much of the cost Redis has to give back.
std::uint64_t give_back_here(const Limit& limit, const Process& process, Micros (*wall)());

// After Redis has given back a part of the cost too: the table may have got an older state from Redis
// meanwhile, and follows `said`, the decision of Redis afterwards. The table has unsent counts.
void follow_here(const Limit& limit, const Decision& said, const Process& process, Micros (*wall)());

// Room for the part of a policy that belongs to this instance.
using PolicyRoom = std::aligned_storage_t<sizeof(Policy), alignof(Policy)>;

// Makes a limit of a table, which add() or memory_limit() has made of `limit`, the fallback of its Redis.
// `room` must live as long as the limit.
inline void make_fallback(const Limit& limit, PolicyRoom* room, TableLimit* own) {
    // Redis is charged later for requests that this instance admits, and by the whole rate.
    own->ahead = 0;
    own->rates = &limit.policy->rates;
    if (limit.zone->membership != nullptr) {
        own->policy = new (room) Policy(part_of(*limit.policy, limit.zone->membership->share()));
    }
}

}  // namespace rate_limit
