// Writes policies and entries for the scripts and reads their answers.
#include "protocol/wire.h"

#include <algorithm>
#include <utility>

#include "core/bytes.h"

namespace rate_limit {
namespace {

template <std::size_t... kIndices>
void put_bytes(char* at, std::uint64_t number, std::index_sequence<kIndices...>) {
    ((at[kIndices] = static_cast<char>(number >> (kIndices * 8))), ...);
}

// The compiler makes one instruction of it where it can, as it does not of a loop.
template <std::size_t kBytes>
char* put(char* at, std::uint64_t number) {
    put_bytes(at, number, std::make_index_sequence<kBytes>());
    return at + kBytes;
}

template <std::size_t... kIndices>
std::uint64_t number_of(const char* at, std::index_sequence<kIndices...>) {
    return ((std::uint64_t{static_cast<unsigned char>(at[kIndices])} << (kIndices * 8)) | ...);
}

template <std::size_t kBytes>
bool take(std::string_view* text, std::uint64_t* number) {
    if (text->size() < kBytes) {
        return false;
    }
    *number = number_of(text->data(), std::make_index_sequence<kBytes>());
    text->remove_prefix(kBytes);
    return true;
}

enum Bits : unsigned { kRateBits = 7, kAllowed = 8, kMore = 16, kIsNever = 32 };

// No admitted request has to wait for longer: a reply that says so is not the script's.
Micros longest_delay(const Policy& policy) {
    Micros longest = 0;
    for (std::uint32_t i = 0; i < policy.rates.size && policy.delay != kNoDelay; i++) {
        longest = std::max(longest, window_of(policy, policy.rates.rates[i]));
    }
    return longest;
}

constexpr std::size_t kWaitBytes = 7;
constexpr std::size_t kDecisionSize = 1 + 4 + kWaitBytes;
constexpr std::size_t kMoreSize = kWaitBytes + 8;

}  // namespace

std::size_t encode_policy(const Policy& policy, const StateLayout& layout, char* at) {
    const char* start = at;
    const unsigned flags = (policy.align_first ? 1U : 0U) | (policy.count_all ? 2U : 0U) |
                           (layout.varied ? 4U : 0U) | (policy.debt ? 8U : 0U);
    at = put<1>(at, static_cast<std::uint64_t>(policy.algorithm));
    at = put<1>(at, flags);
    at = put<1>(at, policy.rates.size);
    at = put<1>(at, layout.rates);
    at = put<4>(at, layout.buckets != 0 ? layout.buckets : layout.log_entries);
    at = put<4>(at, policy.ceiling);
    at = put<4>(at, policy.delay);
    at = put<8>(at, static_cast<std::uint64_t>(policy.min_interval));
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        const Rate& rate = policy.rates.rates[i];
        at = put<4>(at, capacity_of(policy, rate));
        at = put<4>(at, rate.count);
        at = put<4>(at, static_cast<std::uint64_t>(rate.period / kSecond));
    }
    return static_cast<std::size_t>(at - start);
}

char* put_group(char* at, std::size_t limits, bool refund) {
    return put<1>(at, limits | (refund ? kRefund : 0U));
}

char* put_limit(char* at, std::size_t policy, std::uint32_t cost) { return put<4>(put<1>(at, policy), cost); }

bool decode_time(std::string_view* reply, Micros* time) {
    std::uint64_t number = 0;
    const bool taken = take<8>(reply, &number) && number < static_cast<std::uint64_t>(kForever);
    *time = taken ? static_cast<Micros>(number) : 0;
    return taken;
}

bool decode_decision(std::string_view* reply, const Policy& policy, Decision* decision) {
    std::uint64_t bits = 0;
    std::uint64_t remaining = 0;
    std::uint64_t reset = 0;
    std::uint64_t wait = 0;
    std::uint64_t excess = 0;
    if (!take<1>(reply, &bits) || !take<4>(reply, &remaining) || !take<kWaitBytes>(reply, &reset) ||
        (bits & kRateBits) >= policy.rates.size) {
        return false;
    }
    if ((bits & kMore) != 0 && (!take<kWaitBytes>(reply, &wait) || !take<8>(reply, &excess))) {
        return false;
    }
    const bool allowed = (bits & kAllowed) != 0;
    if (std::max(reset, wait) > static_cast<std::uint64_t>(kForever + kClockSlack)) {
        return false;
    }
    if (allowed && wait != 0 && static_cast<Micros>(wait) > longest_delay(policy)) {
        return false;
    }
    *decision = {};
    decision->allowed = allowed;
    decision->rate = static_cast<std::uint8_t>(bits & kRateBits);
    decision->limit = capacity_of(policy, policy.rates.rates[decision->rate]);
    decision->remaining = static_cast<std::uint32_t>(remaining);
    decision->reset_after = static_cast<Micros>(reset);
    decision->excess_milli = excess;
    if (decision->allowed) {
        decision->delay = static_cast<Micros>(wait);
    } else {
        decision->retry_after = (bits & kIsNever) != 0 ? kNever : static_cast<Micros>(wait);
    }
    return true;
}

bool skip_decision(std::string_view* reply) {
    if (reply->size() < kDecisionSize) {
        return false;
    }
    const bool more = (static_cast<unsigned char>(reply->front()) & kMore) != 0;
    const std::size_t size = kDecisionSize + (more ? kMoreSize : 0);
    if (reply->size() < size) {
        return false;
    }
    reply->remove_prefix(size);
    return true;
}

void append_entry(std::size_t policy, std::uint32_t cost, redis::Buffer* entries) {
    char* at = entries->extend(kLimitSize);
    if (at != nullptr) {
        put_limit(at, policy, cost);
    }
}

bool decode_entry(std::string_view* reply, std::uint32_t* overshoot, std::string_view* value) {
    constexpr std::size_t kHeader = 4 + 2;
    if (reply->size() < kHeader) {
        return false;
    }
    const std::size_t length = little_endian<std::uint16_t>(reply->data() + 4);
    if (reply->size() < kHeader + length) {
        return false;
    }
    *overshoot = static_cast<std::uint32_t>(little_endian<std::uint32_t>(reply->data()));
    *value = reply->substr(kHeader, length);
    reply->remove_prefix(kHeader + length);
    return true;
}

}  // namespace rate_limit
