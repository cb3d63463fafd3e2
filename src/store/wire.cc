// Writes policies and entries for the scripts and reads their answers.
#include "store/wire.h"

#include <algorithm>

#include "store/bytes.h"

namespace rate_limit {
namespace {

char* put(char* at, std::uint64_t number, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i++) {
        *at++ = static_cast<char>(number >> (i * 8));
    }
    return at;
}

bool take(std::string_view* text, std::size_t bytes, std::uint64_t* number) {
    if (text->size() < bytes) {
        return false;
    }
    *number = 0;
    for (std::size_t i = 0; i < bytes; i++) {
        *number |= std::uint64_t{static_cast<unsigned char>((*text)[i])} << (i * 8);
    }
    text->remove_prefix(bytes);
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

std::size_t encode_policy(const Policy& policy, const Shape& shape, char* at) {
    const char* start = at;
    const unsigned flags = (policy.align_first ? 1U : 0U) | (policy.count_all ? 2U : 0U) |
                           (shape.varied ? 4U : 0U) | (policy.debt ? 8U : 0U);
    at = put(at, static_cast<std::uint64_t>(policy.algorithm), 1);
    at = put(at, flags, 1);
    at = put(at, policy.rates.size, 1);
    at = put(at, shape.rates, 1);
    at = put(at, shape.buckets != 0 ? shape.buckets : shape.log_entries, 4);
    at = put(at, policy.ceiling, 4);
    at = put(at, policy.delay, 4);
    at = put(at, static_cast<std::uint64_t>(policy.min_interval), 8);
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        const Rate& rate = policy.rates.rates[i];
        at = put(at, capacity_of(policy, rate), 4);
        at = put(at, rate.count, 4);
        at = put(at, static_cast<std::uint64_t>(rate.period / kSecond), 4);
    }
    return static_cast<std::size_t>(at - start);
}

void append_number(std::uint64_t number, std::size_t bytes, redis::Buffer* buffer) {
    char* at = buffer->extend(bytes);
    if (at != nullptr) {
        put(at, number, bytes);
    }
}

bool decode_time(std::string_view* reply, Micros* time) {
    std::uint64_t number = 0;
    const bool taken = take(reply, 8, &number) && number < static_cast<std::uint64_t>(kForever);
    *time = taken ? static_cast<Micros>(number) : 0;
    return taken;
}

bool decode_decision(std::string_view* reply, const Policy& policy, Decision* decision) {
    std::uint64_t bits = 0;
    std::uint64_t remaining = 0;
    std::uint64_t reset = 0;
    std::uint64_t wait = 0;
    std::uint64_t excess = 0;
    if (!take(reply, 1, &bits) || !take(reply, 4, &remaining) || !take(reply, kWaitBytes, &reset) ||
        (bits & kRateBits) >= policy.rates.size) {
        return false;
    }
    if ((bits & kMore) != 0 && (!take(reply, kWaitBytes, &wait) || !take(reply, 8, &excess))) {
        return false;
    }
    const bool allowed = (bits & kAllowed) != 0;
    if (std::max(reset, wait) > static_cast<std::uint64_t>(kForever + kClockSlack)) {
        return false;
    }
    if (allowed && static_cast<Micros>(wait) > longest_delay(policy)) {
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
    char* at = entries->extend(1 + 4);
    if (at != nullptr) {
        put(put(at, policy, 1), cost, 4);
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
