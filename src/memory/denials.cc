// Remembers rejections until they no longer hold.
#include "memory/denials.h"

#include <algorithm>
#include <new>

#include "core/arithmetic.h"
#include "memory/policy_mark.h"

namespace rate_limit {
namespace {

constexpr std::uint64_t kMostExcess = 0xffffffff;  // 1/1000 requests; only for the log

// One word: remaining, the index of the rate, and whether retry_after is kNever.
constexpr unsigned kRateShift = 53;
constexpr unsigned kNeverShift = 63;

std::uint64_t pack(const Decision& decision) {
    return decision.remaining | (std::uint64_t{decision.rate} << kRateShift) |
           (std::uint64_t{decision.retry_after == kNever} << kNeverShift);
}

}  // namespace

std::size_t Denials::least_size() { return 64 + (sizeof(Entry) + sizeof(Tag)) * kWays * 4; }

Denials* Denials::create(void* memory, std::size_t size, const HashKey& key) {
    static_assert(sizeof(Denials) <= 64, "the entries follow at the next cache line");
    static_assert(sizeof(Entry) == 64 && sizeof(Tag) == 2, "an entry is a cache line, and tags are small");
    if (size < least_size()) {
        return nullptr;
    }
    return new (memory) Denials(key, (size - 64) / (sizeof(Entry) + sizeof(Tag)));
}

std::uint64_t Denials::home_of(std::uint64_t client) const {
    return static_cast<std::uint64_t>(multiply(client, entry_count_ - kWays + 1) >> 64);
}

Denials::Entry* Denials::entries() const {
    return reinterpret_cast<Entry*>(const_cast<char*>(reinterpret_cast<const char*>(this)) + 64);
}

std::uint64_t Denials::sum_of(const Copy& copy, std::uint64_t cost) {
    std::uint64_t sum = mix(kMixOdd, cost);
    for (unsigned i = 0; i < kSum; i++) {
        sum = mix(sum, copy.words[i]);
    }
    return sum;
}

bool Denials::load(const Entry& entry, std::uint64_t cost, Copy* copy) {
    for (unsigned i = 0; i < kWords; i++) {
        copy->words[i] = entry.words[i].load(std::memory_order_relaxed);
    }
    return copy->words[kSum] == sum_of(*copy, cost);
}

void Denials::store(const Copy& copy, Entry* entry) {
    for (unsigned i = 0; i < kWords; i++) {
        entry->words[i].store(copy.words[i], std::memory_order_relaxed);
    }
}

bool Denials::find(std::uint64_t client, const Policy& policy, std::uint64_t cost, Micros now,
                   Decision* decision, Micros* time) const {
    const std::uint64_t home = home_of(client);
    const Tag* tags = this->tags() + home;
    const Entry* ways = entries() + home;
    __builtin_prefetch(ways);  // most clients have their first entry
    for (unsigned way = 0; way < kWays; way++) {
        if (tags[way].load(std::memory_order_relaxed) != tag_of(client)) {
            continue;
        }
        Copy copy;
        if (!load(ways[way], cost, &copy) || copy.words[kClient] != client ||
            (copy.words[kPolicy] & 0xffffffff) != policy_mark(policy) ||
            static_cast<Micros>(copy.words[kUntil]) <= now) {
            continue;
        }
        const std::uint64_t numbers = copy.words[kNumbers];
        const bool never = numbers >> kNeverShift != 0;
        *decision = {};
        decision->rate = static_cast<std::uint8_t>(numbers >> kRateShift & 7);
        decision->limit = capacity_of(policy, policy.rates.rates[decision->rate]);
        decision->remaining = numbers & kMaxCount;
        decision->reset_after = std::max<Micros>(0, static_cast<Micros>(copy.words[kReset]) - now);
        decision->retry_after =
            never ? kNever : std::max<Micros>(1, static_cast<Micros>(copy.words[kRetry]) - now);
        decision->excess_milli = copy.words[kPolicy] >> 32;
        *time = now + static_cast<Micros>(copy.words[kAhead]);
        return true;
    }
    return false;
}

void Denials::remember(std::uint64_t client, const Policy& policy, std::uint64_t cost, Micros now,
                       Micros time, const Decision& decision, Micros most) {
    const Micros wait = decision.retry_after == kNever ? most : decision.retry_after;
    Copy copy = {};
    copy.words[kClient] = client;
    copy.words[kPolicy] = policy_mark(policy) | (std::min(decision.excess_milli, kMostExcess) << 32);
    copy.words[kUntil] = static_cast<std::uint64_t>(now + std::min(wait, most));
    copy.words[kReset] = static_cast<std::uint64_t>(now + decision.reset_after);
    copy.words[kRetry] = static_cast<std::uint64_t>(now + wait);
    copy.words[kAhead] = static_cast<std::uint64_t>(time - now);
    copy.words[kNumbers] = pack(decision);
    copy.words[kSum] = sum_of(copy, cost);
    // The entry of the client, else the entry that ends first.
    const std::uint64_t home = home_of(client);
    Entry* ways = entries() + home;
    unsigned chosen = 0;
    for (unsigned way = 0; way < kWays; way++) {
        if (ways[way].words[kClient].load(std::memory_order_relaxed) == client) {
            chosen = way;
            break;
        }
        if (ways[way].words[kUntil].load(std::memory_order_relaxed) <
            ways[chosen].words[kUntil].load(std::memory_order_relaxed)) {
            chosen = way;
        }
    }
    store(copy, &ways[chosen]);
    tags()[home + chosen].store(tag_of(client), std::memory_order_relaxed);
    const auto until = static_cast<Micros>(copy.words[kUntil]);
    Micros latest = latest_.load(std::memory_order_relaxed);
    while (latest < until && !latest_.compare_exchange_weak(latest, until, std::memory_order_relaxed)) {
    }
}

void Denials::forget(std::uint64_t client) {
    Entry* ways = entries() + home_of(client);
    for (unsigned way = 0; way < kWays; way++) {
        std::uint64_t found = client;
        if (ways[way].words[kClient].compare_exchange_strong(found, 0, std::memory_order_relaxed)) {
            ways[way].words[kUntil].store(0, std::memory_order_relaxed);
        }
    }
}

}  // namespace rate_limit
