// A limit of a request, and its zone, as the store sees them.
#pragma once

#include <cstdint>
#include <string_view>

#include "algorithms/check.h"
#include "fleet/heartbeat.h"
#include "lease/leases.h"
#include "memory/denials.h"
#include "memory/table.h"
#include "statistics/decided_by.h"
#include "store/reason.h"

namespace rate_limit {

class CheckBatcher;

// What a zone does while its Redis does not answer.
enum class OnError : std::uint8_t { kOpen, kClosed, kLocal };

// Where the state of a zone's clients is. Lives as long as the process uses the zone.
struct StoreZone {
    std::string_view label;        // the zone's name, part of its keys in Redis
    StateLayout layout;            // of a client's state
    Table* table;                  // null for a zone in Redis, unless on_error=local
    CheckBatcher* batcher;         // null unless Redis decides each request
    CheckBatcher* corrector;       // sync=: for corrections of counts that were sent; null if not connected
    const Membership* membership;  // of the instances that share the Redis; null if they are not counted
    Denials* denials;              // null if rejections by Redis are not remembered
    Micros deny_for;               // the longest time that a rejection is remembered
    OnError on_error;
    LeaseSize lease = {};      // lease=
    Leases* leases = nullptr;  // null unless the zone has lease=
    Lender* lender = nullptr;  // null unless the zone has lease= and is connected
};

// One limit of a request. `client` and `policy` must live until decide() returns, or until its RequestCheck
// is decided, left or forgotten.
struct Limit {
    const StoreZone* zone;
    const Policy* policy;  // has rates
    std::string_view client;
    std::uint64_t cost;  // 0 only reads
    const void* tag;     // the caller's
    bool is_short;       // short_name has been applied to `client`
    bool is_single;      // is_single(*policy, zone->layout), and not is_short; false is slower, never wrong

    // Set by decide().
    DecidedBy decided_by;
    Reason reason;          // why the fallback or nobody decided
    Decision decision;      // not set if nobody decided
    Micros decided_at;      // time of day, by Redis's clock if Redis decided; not set if nobody decided
    bool charged;           // the request is admitted, and refund() has not given it back
    std::uint32_t portion;  // of the lease that was charged, if a lease decided
};

}  // namespace rate_limit
