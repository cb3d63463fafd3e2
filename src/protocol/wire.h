// How checks and decisions travel between the store and the script: little-endian numbers without gaps.
//
//     EVALSHA sha N key1 ... keyN POLICIES GROUPS
//
// POLICIES has a record for each policy that the call needs, and GROUPS one for each request, whose limits
// name their policies by number and have their keys in the same order. lua/main.lua reads both, and answers
// with the time and a record for each limit.
//
//     EVALSHA sha 0 POLICIES GROUPS key1 ... keyN
//
// asks a node of a cluster the same for keys of several slots. The answer is empty, and nothing has changed,
// if it does not have all of them.
//
//     EVALSHA sha N key1 ... keyN-1 GUARD POLICIES ENTRIES SEQUENCE AGE
//
// charges what was admitted elsewhere, whether it fits or not: ENTRIES has a record for each client, whose
// keys all differ. SEQUENCE is a decimal number, and AGE how many
// microseconds ago it was admitted, at most. A call whose number is not above the one that GUARD holds
// was applied before, and only looks. lua/sync.lua reads this, and answers with the time and a record for
// each client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "redis/buffer.h"

namespace rate_limit {

constexpr std::size_t kMaxPolicies = 255;  // in a call
constexpr std::size_t kLongestPolicy = 24 + kMaxRates * 12;
constexpr std::size_t kMaxEntries = 1024;  // in a call; Lua's stack takes a few thousand
constexpr std::uint8_t kRefund = 0x80;     // in a group's first byte

// Writes a policy's record to `at`, which has room for kLongestPolicy bytes. Returns its size.
std::size_t encode_policy(const Policy& policy, const StateLayout& layout, char* at);

// Writes the record of a group: its head, and then each of its limits. Returns where it ends.
constexpr std::size_t kGroupSize = 1;
constexpr std::size_t kLimitSize = 5;
char* put_group(char* at, std::size_t limits, bool refund);
char* put_limit(char* at, std::size_t policy, std::uint32_t cost);

// Takes the time from a reply; false if it is too short.
bool decode_time(std::string_view* reply, Micros* time);

// Takes the next decision from a reply, of a limit with this policy; false if it is none.
bool decode_decision(std::string_view* reply, const Policy& policy, Decision* decision);

// Skips the next decision of a reply.
bool skip_decision(std::string_view* reply);

// The record of a client to whom `cost` is charged; one of 0 looks. `policy` is the number of its policy.
void append_entry(std::size_t policy, std::uint32_t cost, redis::Buffer* entries);

// Takes the next client's record from a reply; false if it is none. `overshoot` is how many of the requests
// that were charged no longer fitted, `value` what the client's key holds now and part of the reply: empty if
// there is no key, and for a log, which does not travel.
bool decode_entry(std::string_view* reply, std::uint32_t* overshoot, std::string_view* value);

}  // namespace rate_limit
