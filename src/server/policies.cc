// Reads policy records, and refuses those that no instance can have sent.
#include "server/policies.h"

#include <algorithm>
#include <cstring>

#include "protocol/pack.h"
#include "protocol/stored_state.h"

namespace rate_limit {
namespace {

constexpr char kMalformed[] = "ERR the policies are malformed";
constexpr char kLargeLog[] = "ERR a sliding_log of this size needs the script";

// What is beside the rates in a record.
struct Head {
    std::uint64_t algorithm;
    std::uint64_t flags;
    std::uint64_t rates;
    std::uint64_t slots;
    std::uint64_t size;
    std::uint64_t ceiling;
    std::uint64_t delay;
    std::uint64_t min_interval;
};

// The capacity of each rate, and the most that a client may have used.
struct Quotas {
    std::uint64_t limits[kMaxRates];
    std::uint64_t most[kMaxRates];
};

bool read_rates(std::string_view* text, Policy* policy, Quotas* quotas) {
    for (std::uint32_t i = 0; i < policy->rates.size; i++) {
        std::uint64_t count = 0;
        std::uint64_t seconds = 0;
        if (!unpack<kRateFormat>(text, &quotas->limits[i], &count, &seconds, &quotas->most[i])) {
            return false;
        }
        const std::uint64_t limit = quotas->limits[i];
        if (limit == 0 || limit > kMaxCount || count == 0 || count > kMaxCount || seconds == 0 ||
            seconds > static_cast<std::uint64_t>(kMaxPeriod / kSecond) || quotas->most[i] < limit ||
            quotas->most[i] > kMaxCount) {
            return false;
        }
        policy->rates.rates[i] = {count, static_cast<Micros>(seconds) * kSecond};
    }
    return true;
}

// Sets burst or capacity so that capacity_of() returns the limits of the record; false if nothing does.
bool set_capacity(const Quotas& quotas, Policy* policy) {
    const auto fits = [&] {
        for (std::uint32_t i = 0; i < policy->rates.size; i++) {
            if (capacity_of(*policy, policy->rates.rates[i]) != quotas.limits[i]) {
                return false;
            }
        }
        return true;
    };
    policy->burst = takes<kTakesBurst>(policy->algorithm) ? quotas.limits[0] - 1 : 0;
    if (fits()) {
        return true;
    }
    policy->capacity = quotas.limits[0];
    return fits();
}

// Sets debt and overdraft so that most_used() returns the numbers of the record; false if nothing does.
bool set_debt(const Quotas& quotas, Policy* policy) {
    for (const bool debt : {false, true}) {
        for (std::uint32_t n = 0; n < policy->rates.size; n++) {
            policy->debt = debt;
            policy->overdraft = quotas.most[n] - quotas.limits[n];
            bool fits = true;
            for (std::uint32_t i = 0; i < policy->rates.size; i++) {
                fits = fits && most_used(*policy, policy->rates.rates[i]) == quotas.most[i];
            }
            if (fits) {
                return true;
            }
        }
    }
    return false;
}

// Whether a state without large counts can hold the policy.
bool fits_small(const Quotas& quotas, const Policy& policy) {
    std::uint64_t most = policy.ceiling;
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        most = std::max({most, quotas.limits[i], policy.rates.rates[i].count});
    }
    return most <= kMaxSmallCount;
}

bool set_size(std::uint64_t size, ReadPolicy* read) {
    const bool ring = has_state<StateKind::kRing>(read->policy.algorithm);
    const bool log = has_state<StateKind::kLog>(read->policy.algorithm);
    if ((ring && (size < kMinBuckets || size > kMaxBuckets)) ||
        (log && (size == 0 || size > kMaxLogEntries))) {
        return false;
    }
    StateLayout& layout = read->layout;
    if (ring) {
        read->policy.buckets = layout.buckets = static_cast<std::uint32_t>(size);
    }
    if (log) {
        const RateList& rates = read->policy.rates;
        Micros longest = 0;
        for (std::uint32_t i = 0; i < rates.size; i++) {
            longest = std::max(longest, rates.rates[i].period);
        }
        layout.log_entries = static_cast<std::uint32_t>(size);
        layout.log_bytes = layout.varied || longest >> 32 != 0 ? kWideLogBytes : kNarrowLogBytes;
    }
    return true;
}

bool is_valid(const Head& head) {
    const bool log =
        head.algorithm < kAlgorithms && has_state<StateKind::kLog>(static_cast<Algorithm>(head.algorithm));
    return head.algorithm < kAlgorithms &&
           head.flags <= (kFlagAlignFirst | kFlagCountAll | kFlagVaried | kFlagLarge) && head.rates != 0 &&
           head.rates <= kMaxRates && head.slots != 0 && head.slots <= kMaxRates &&
           (log ? head.slots == 1 : head.rates <= head.slots) && head.ceiling <= kMaxCount &&
           head.delay <= kNoDelay && head.min_interval <= static_cast<std::uint64_t>(kForever);
}

bool read_record(std::string_view* text, ReadPolicy* read) {
    Head head;
    if (!unpack<kPolicyFormat>(text, &head.algorithm, &head.flags, &head.rates, &head.slots, &head.size,
                               &head.ceiling, &head.delay, &head.min_interval) ||
        !is_valid(head)) {
        return false;
    }
    *read = {};
    Policy& policy = read->policy;
    policy.algorithm = static_cast<Algorithm>(head.algorithm);
    policy.align_first = (head.flags & kFlagAlignFirst) != 0;
    policy.count_all = (head.flags & kFlagCountAll) != 0;
    policy.ceiling = head.ceiling;
    policy.delay = head.delay;
    policy.min_interval = static_cast<Micros>(head.min_interval);
    policy.rates.size = static_cast<std::uint32_t>(head.rates);
    const bool log = has_state<StateKind::kLog>(policy.algorithm);
    Quotas quotas = {};
    if (!read_rates(text, &policy, &quotas) || !set_capacity(quotas, &policy) || !set_debt(quotas, &policy)) {
        return false;
    }
    StateLayout& layout = read->layout;
    layout.algorithm = policy.algorithm;
    layout.rates = static_cast<std::uint32_t>(head.slots);
    layout.interval = policy.min_interval != 0;
    // Only a log depends on the other rates of its zone. The weight of other states is not stored.
    layout.varied = log && (head.flags & kFlagVaried) != 0;
    layout.large = !log && (head.flags & kFlagLarge) != 0;
    if (!set_size(head.size, read) || (!log && !layout.large && !fits_small(quotas, policy))) {
        return false;
    }
    read->single = is_single(policy, layout);
    read->fixed_expiry =
        has_state<StateKind::kCount>(policy.algorithm) || has_state<StateKind::kCounts>(policy.algorithm);
    return true;
}

}  // namespace

const char* Policies::read(std::string_view text) {
    if (text.size() == known_size_ && known_size_ != 0 &&
        std::memcmp(text.data(), known_, known_size_) == 0) {
        return nullptr;
    }
    const std::string_view whole = text;
    known_size_ = size_ = 0;
    while (!text.empty()) {
        if (size_ == kMaxPolicies || !read_record(&text, &policies_[size_])) {
            return kMalformed;
        }
        if (!is_storable(policies_[size_].layout)) {
            return kLargeLog;
        }
        size_++;
    }
    if (whole.size() <= kLongestKnown) {
        known_size_ = whole.size();
        whole.copy(known_, known_size_);
    }
    return nullptr;
}

}  // namespace rate_limit
