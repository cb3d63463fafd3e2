// Gives back what a request was charged. The only way to undo a charge, while limits are still being decided
// and afterwards.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

#include "core/share.h"
#include "memory/table_check.h"
#include "store/limit.h"

namespace rate_limit {

// Refunds the limits that are charged, any number of them. Clears Limit::charged of each refunded limit, so
// that no charge is refunded twice, and adds the refund to the remaining requests of its decision. A charge
// that no longer counts in full is not refunded, nor is a charge of a zone that counts rejected requests (see
// is_refundable). The deny cache forgets the rejections of the clients, because the charge may have caused
// them.
//
// Never waits: limits in Redis are refunded by one of the next calls, and stay charged if Redis does not
// answer.
void refund(Limit* limits, std::size_t count, const Process& process, Micros (*wall)());

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
