// The deny cache: rejections by Redis, in memory that several processes share, so that a client that repeats
// a rejected request is rejected without a call to Redis.
//
// A small cache without locks. Each entry has a checksum of its words and of the cost of the rejected
// request: an entry that two processes wrote at the same time, whose writer died, or of another cost, is not
// found.
//
// A client may have any of kWays consecutive entries. Each entry has a tag, 16 bits of the client's hash. All
// tags are together, so that the search for an unknown client, the most common case, reads one cache line.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "algorithms/check.h"
#include "memory/siphash.h"

namespace rate_limit {

class Denials {
  public:
    // The smallest size that create() accepts.
    static std::size_t least_size();

    // Creates an empty cache in `size` bytes at `memory`, all zero and aligned to 64 bytes; null if `size` is
    // too small. The cache lives in that memory and is never destroyed. `key` must be random.
    static Denials* create(void* memory, std::size_t size, const HashKey& key);

    std::uint64_t hash(std::string_view client) const {
        const std::uint64_t hash = siphash(key_, client);
        return hash != 0 ? hash : 1;
    }

    // Whether any rejection is remembered at `now`, by a clock that is never set back. Call it before find(),
    // which costs more than all other work for a request before the call to Redis.
    bool any(Micros now) const { return latest_.load(std::memory_order_relaxed) > now; }

    // Whether a request of `cost` is known to be rejected at `now`. Then sets `*decision` to what Redis would
    // answer and `*time` to the time of Redis.
    bool find(std::uint64_t client, const Policy& policy, std::uint64_t cost, Micros now, Decision* decision,
              Micros* time) const;

    // Remembers for at most `most` microseconds that `decision` rejected a request of `cost` at `now`, when
    // the time of Redis was `time`.
    void remember(std::uint64_t client, const Policy& policy, std::uint64_t cost, Micros now, Micros time,
                  const Decision& decision, Micros most);

    // Forgets the rejections of a client.
    void forget(std::uint64_t client);

  private:
    static constexpr unsigned kWords = 8;
    static constexpr unsigned kWays = 8;  // entries that a client may have

    enum Word : unsigned { kClient, kPolicy, kUntil, kReset, kRetry, kAhead, kNumbers, kSum };

    struct Entry {
        std::atomic<std::uint64_t> words[kWords];
    };

    struct Copy {
        std::uint64_t words[kWords];
    };

    using Tag = std::atomic<std::uint16_t>;  // 0 if the entry was never used

    Denials(const HashKey& key, std::uint64_t entries) : key_(key), entry_count_(entries) {}

    static std::uint16_t tag_of(std::uint64_t client) { return static_cast<std::uint16_t>(client | 1); }

    // The first entry that a client may have.
    std::uint64_t home_of(std::uint64_t client) const;

    Entry* entries() const;
    Tag* tags() const { return reinterpret_cast<Tag*>(entries() + entry_count_); }
    static bool load(const Entry& entry, std::uint64_t cost, Copy* copy);
    static void store(const Copy& copy, Entry* entry);
    static std::uint64_t sum_of(const Copy& copy, std::uint64_t cost);

    HashKey key_;
    std::uint64_t entry_count_;
    std::atomic<Micros> latest_{0};  // when the last remembered rejection ends
};

}  // namespace rate_limit
