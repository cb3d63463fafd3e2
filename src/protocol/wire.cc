// Writes policies, groups and sync entries, and reads the replies.
#include "protocol/wire.h"

#include <algorithm>

#include "protocol/pack.h"

namespace rate_limit {
namespace {

constexpr std::uint64_t kRateBits = kMaxRates - 1;  // of the first byte of a decision

static_assert(packed_size(kPolicyFormat) == kPolicySize);
static_assert(packed_size(kRateFormat) == kRateSize);
static_assert(packed_size(kLimitFormat) == kLimitSize);
static_assert(packed_size(kLargeLimitFormat) == kLargeLimitSize);
static_assert(packed_size(kChargeFormat) == kChargeSize);

// The longest delay of an admitted request. The script never replies with a longer one.
Micros longest_delay(const Policy& policy) {
    Micros longest = 0;
    for (std::uint32_t i = 0; i < policy.rates.size && policy.delay != kNoDelay; i++) {
        longest = std::max(longest, window_of(policy, policy.rates.rates[i]));
    }
    return longest;
}

}  // namespace

std::size_t encode_policy(const Policy& policy, const StateLayout& layout, char* at) {
    const unsigned flags = (policy.align_first ? kFlagAlignFirst : 0U) |
                           (policy.count_all ? kFlagCountAll : 0U) | (layout.varied ? kFlagVaried : 0U) |
                           (layout.large ? kFlagLarge : 0U);
    const char* start = at;
    at = pack<kPolicyFormat>(at, policy.algorithm, flags, policy.rates.size, layout.rates,
                             layout.buckets != 0 ? layout.buckets : layout.log_entries, policy.ceiling,
                             policy.delay, policy.min_interval);
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        const Rate& rate = policy.rates.rates[i];
        at = pack<kRateFormat>(at, capacity_of(policy, rate), rate.count, rate.period / kSecond,
                               most_used(policy, rate));
    }
    return static_cast<std::size_t>(at - start);
}

char* put_group(char* at, std::size_t limits, GroupKind kind, bool large) {
    *at = static_cast<char>(limits | kind | (large ? kLargeCosts : 0U));
    return at + kGroupSize;
}

char* put_limit(char* at, std::size_t policy, std::uint64_t cost, bool large) {
    return large ? pack<kLargeLimitFormat>(at, policy, cost) : pack<kLimitFormat>(at, policy, cost);
}

char* put_charge(char* at, const Charge& charge) { return pack<kChargeFormat>(at, charge.cost, charge.at); }

bool decode_time(std::string_view* reply, Micros* time) {
    std::uint64_t number = 0;
    const bool taken = unpack<kTimeFormat>(reply, &number) && number < static_cast<std::uint64_t>(kForever);
    *time = taken ? static_cast<Micros>(number) : 0;
    return taken;
}

bool decode_decision(std::string_view* reply, const Policy& policy, Decision* decision) {
    std::uint64_t first = 0;  // bits and remaining
    std::uint64_t reset = 0;
    std::uint64_t wait = 0;
    std::uint64_t excess = 0;
    std::uint64_t high = 0;  // bits of remaining
    if (!unpack<kDecisionFormat>(reply, &first, &reset) || (first & kRateBits) >= policy.rates.size) {
        return false;
    }
    if ((first & kDecisionMore) != 0 && !unpack<kMoreFormat>(reply, &wait, &excess)) {
        return false;
    }
    if ((first & kDecisionHigh) != 0 && !unpack<kHighFormat>(reply, &high)) {
        return false;
    }
    const bool allowed = (first & kDecisionAllowed) != 0;
    if (std::max(reset, wait) > static_cast<std::uint64_t>(kForever + kClockSlack)) {
        return false;
    }
    if (allowed && wait != 0 && static_cast<Micros>(wait) > longest_delay(policy)) {
        return false;
    }
    *decision = {};
    decision->allowed = allowed;
    decision->rate = static_cast<std::uint8_t>(first & kRateBits);
    decision->limit = capacity_of(policy, policy.rates.rates[decision->rate]);
    decision->remaining = (first >> 8) | (high << 32);
    decision->reset_after = static_cast<Micros>(reset);
    decision->excess_milli = excess;
    if (decision->allowed) {
        decision->delay = static_cast<Micros>(wait);
    } else {
        decision->retry_after = (first & kDecisionNever) != 0 ? kNever : static_cast<Micros>(wait);
    }
    return true;
}

bool skip_decision(std::string_view* reply) {
    constexpr std::size_t kShortest = packed_size(kDecisionFormat);
    if (reply->size() < kShortest) {
        return false;
    }
    const auto flags = static_cast<unsigned char>(reply->front());
    const std::size_t size = kShortest + ((flags & kDecisionMore) != 0 ? packed_size(kMoreFormat) : 0) +
                             ((flags & kDecisionHigh) != 0 ? packed_size(kHighFormat) : 0);
    if (reply->size() < size) {
        return false;
    }
    reply->remove_prefix(size);
    return true;
}

void append_entry(std::size_t policy, std::uint64_t cost, redis::Buffer* entries) {
    char* at = entries->extend(kLargeLimitSize);
    if (at != nullptr) {
        put_limit(at, policy, cost, true);
    }
}

bool decode_entry(std::string_view* reply, std::uint64_t* overshoot, std::string_view* value) {
    std::uint64_t length = 0;
    if (!unpack<kEntryFormat>(reply, overshoot, &length) || reply->size() < length) {
        return false;
    }
    *value = reply->substr(0, length);
    reply->remove_prefix(length);
    return true;
}

}  // namespace rate_limit
