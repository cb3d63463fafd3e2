// The messages between the store and the scripts, byte by byte.
//
// All numbers are unsigned and little-endian, and records follow each other without gaps. core/constants.h
// has the formats, sizes and flags that are named here. protocol/key_writer.h describes keys,
// protocol/redis_value.h values.
//
// A check, which lua/main.lua decides. N keys, one for each limit:
//
//     EVALSHA sha N key1 ... keyN POLICIES GROUPS
//     EVALSHA sha 0 POLICIES GROUPS key1 ... keyN
//
// The second form is for keys of several hash slots of one Cluster node. Its reply is empty, and no key has
// changed, if the node does not own all of the slots.
//
// A sync call, which lua/sync.lua applies. N - 1 different client keys, then the guard:
//
//     EVALSHA sha N key1 ... keyN-1 GUARD POLICIES ENTRIES SEQUENCE AGE
//
// The call charges requests that other instances have admitted, even beyond the limit. SEQUENCE is the
// decimal number of the call; AGE is a decimal number too: the requests were admitted at most so many
// microseconds ago. If SEQUENCE is not above the number in GUARD, the call was applied before, and the script
// only reads.
//
// POLICIES: up to kMaxPolicies records. A group names its policies by index. Each record has kPolicyFormat:
//
//     bytes  field
//     1      algorithm: the number of `Algorithm`
//     1      flags: kFlagAlignFirst  `align=first`
//                   kFlagCountAll    `count=all`
//                   kFlagVaried      rates differ between clients
//                   kFlagLarge       counters saturate at kMaxCount, not at kMaxSmallCounter
//     1      number of rates in this record, at least 1
//     1      number of rates that the state has room for
//     4      sliding_buckets: buckets; sliding_log: largest number of entries; otherwise 0
//     7      leaky_bucket, gcra: the most that another policy of the zone admits at once; otherwise 0
//     7      requests of the burst that are not delayed; kNoDelay if none is delayed
//     8      min_interval, in microseconds; 0 for none
//
// and then, for each rate, kRateFormat:
//
//     7      capacity: the most requests that are allowed at once
//     7      count of the rate
//     4      period of the rate, in seconds
//     7      the most that a client may have used: more than the capacity with `sync=` and `settle=`
//
// GROUPS: a record for each request. Each record has a head:
//
//     1      number of limits, 1 to 31, plus
//                   kLargeCosts   a cost of the group exceeds 4 bytes; plus one of
//                   kDecide       the limits are charged together or not at all
//                   kOverdraw     the request turned out to cost more: the cost is charged beyond the limit
//                   kUndo         the request turned out to cost less: the cost is given back
//                   kUndoRequest  the request was rejected later: the cost is given back. With kForever as
//                                 the time of the charge, the newest requests that count are given back
//
// and then, for each limit, kLimitFormat, or kLargeLimitFormat after kLargeCosts, and for kUndo and
// kUndoRequest also kChargeFormat:
//
//     1      index of the policy
//     4, 7   cost; 0 only reads
//
//     7      cost of the charge that is undone
//     8      time of this charge, in microseconds since 1970
//
// ENTRIES: a record for each client, in kLargeLimitFormat.
//
// The reply to a check: kTimeFormat, then a record for each limit of a group with kDecide. Such a record has
// kDecisionFormat, after kDecisionMore also kMoreFormat, and after kDecisionHigh also kHighFormat:
//
//     8      time of Redis, in microseconds since 1970
//
//     1      bits 0 to 2: index of the rate that the numbers below belong to
//            kDecisionAllowed  the request is allowed
//            kDecisionMore     the next two fields follow
//            kDecisionHigh     the last field follows
//            kDecisionNever    a retry can never succeed
//     4      remaining requests, the low bits
//     7      microseconds until the whole quota is back
//     7      if allowed, microseconds of delay; otherwise, microseconds until a retry succeeds
//     8      1/1000 requests above the limit
//     4      remaining requests, the high bits
//
// The first two fields of a decision are one field of five bytes in kDecisionFormat.
//
// The reply to a sync call: kTimeFormat, then for each client kEntryFormat and the value:
//
//     7      number of charged requests that exceed the limit
//     2      length of the value
//     ...    the client's value; empty if there is no key, and for sliding_log
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "algorithms/check.h"
#include "connection/buffer.h"
#include "core/constants.h"

namespace rate_limit {

// The commands of rate_limit.so, the module for Redis. Each takes the arguments of its script after the
// digest, and gives the same reply. A check without keys and groups shows whether a server has the commands.
constexpr std::string_view kNativeCheck = "RATELIMIT.CHECK";
constexpr std::string_view kNativeSync = "RATELIMIT.SYNC";
constexpr std::string_view kNativeProbe = "*4\r\n$15\r\nRATELIMIT.CHECK\r\n$1\r\n0\r\n$0\r\n\r\n$0\r\n\r\n";

constexpr std::size_t kMaxPolicies = 255;  // in a call
constexpr std::size_t kLongestPolicy = kPolicySize + kMaxRates * kRateSize;

// Writes a policy record to `at`, which has room for kLongestPolicy bytes. Returns its size.
std::size_t encode_policy(const Policy& policy, const StateLayout& layout, char* at);

// Whether a cost needs large limit records.
inline bool is_large(std::uint64_t cost) { return cost >> 32 != 0; }

// Write the head of a group record (kGroupSize bytes) and a limit record (kLimitSize or kLargeLimitSize
// bytes) to `at`. All limit records of a group are large if one cost is. Both return the end of what they
// wrote.
char* put_group(char* at, std::size_t limits, GroupKind kind, bool large);
char* put_limit(char* at, std::size_t policy, std::uint64_t cost, bool large);

// Writes a charge (kChargeSize bytes) after a limit record of a group that undoes it. Returns the end of what
// it wrote.
char* put_charge(char* at, const Charge& charge);

// The bytes of a group record.
inline std::size_t group_size(std::size_t limits, GroupKind kind, bool large) {
    return kGroupSize + limits * ((large ? kLargeLimitSize : kLimitSize) + (kind >= kUndo ? kChargeSize : 0));
}

// Takes the time from the front of a reply. False if the reply is too short or the time is not below
// kForever.
bool decode_time(std::string_view* reply, Micros* time);

// Takes the next decision from a reply, for a limit of this policy. False if the reply is too short, or if
// the script cannot have written the decision.
bool decode_decision(std::string_view* reply, const Policy& policy, Decision* decision);

// Skips the next decision of a reply. False if the reply is too short.
bool skip_decision(std::string_view* reply);

// Appends a sync entry that charges `cost` to a client; 0 only reads. `policy` is the index of its policy.
void append_entry(std::size_t policy, std::uint64_t cost, redis::Buffer* entries);

// Takes the next client's record from the reply to a sync call. False if the reply is too short. `overshoot`
// is how many of the charged requests exceed the limit. `value` points into the reply: the value of the
// client's key after the call, empty if there is no key and for sliding_log.
bool decode_entry(std::string_view* reply, std::uint64_t* overshoot, std::string_view* value);

}  // namespace rate_limit
