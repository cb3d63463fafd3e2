// Clients that were just rejected elsewhere, remembered in memory that several processes share, so that
// whoever keeps coming back is turned away without asking.
//
// A small cache without locks: each entry carries a sum of its words, so that one which two processes wrote
// at once, or whose writer died half-way, is simply not found.
//
// A client's entry is in one of a few places, one after the other. Each place has a tag of 16 bits of its
// client, and tags are together in memory of their own: whoever is not remembered, as most are not, costs a
// look at one line of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "memory/siphash.h"

namespace rate_limit {

class Denials {
  public:
    // The least memory that is of use.
    static std::size_t least_size();

    // Makes an empty cache in `size` bytes at `memory`, all zero and aligned to 64 bytes; null if that is too
    // small. It lives in that memory and is never destroyed. `key` must be random.
    static Denials* create(void* memory, std::size_t size, const HashKey& key);

    std::uint64_t hash(std::string_view client) const {
        const std::uint64_t hash = siphash(key_, client);
        return hash != 0 ? hash : 1;
    }

    // Whether anybody may be known to be rejected at `now`, a moment of a clock that is never set back: to
    // look for a client takes longer than all else that is done for a request before Redis is asked.
    bool any(Micros now) const { return latest_.load(std::memory_order_relaxed) > now; }

    // Whether a request of `cost` is known to be rejected at `now`; `*decision` is then what Redis would say.
    bool find(std::uint64_t client, const Policy& policy, std::uint32_t cost, Micros now, Decision* decision,
              Micros* time) const;

    // Remembers that `decision` rejected a request of `cost` at `now`, when Redis' clock showed `time`, for
    // at most `most`.
    void remember(std::uint64_t client, const Policy& policy, std::uint32_t cost, Micros now, Micros time,
                  const Decision& decision, Micros most);

    // Forgets that a client was rejected.
    void forget(std::uint64_t client);

  private:
    static constexpr unsigned kWords = 8;
    static constexpr unsigned kWays = 8;  // places that may be a client's

    enum Word : unsigned { kClient, kPolicy, kUntil, kReset, kRetry, kAhead, kNumbers, kSum };

    struct Entry {
        std::atomic<std::uint64_t> words[kWords];
    };

    struct Copy {
        std::uint64_t words[kWords];
    };

    using Tag = std::atomic<std::uint16_t>;  // 0 if the place was never used

    Denials(const HashKey& key, std::uint64_t entries) : key_(key), entry_count_(entries) {}

    static std::uint16_t tag_of(std::uint64_t client) { return static_cast<std::uint16_t>(client | 1); }

    // The first of the places that may be a client's.
    std::uint64_t home_of(std::uint64_t client) const;

    Entry* entries() const;
    Tag* tags() const { return reinterpret_cast<Tag*>(entries() + entry_count_); }
    static bool load(const Entry& entry, Copy* copy);
    static void store(const Copy& copy, Entry* entry);
    static std::uint64_t sum_of(const Copy& copy);

    HashKey key_;
    std::uint64_t entry_count_;
    std::atomic<Micros> latest_{0};  // when the last of all that are remembered ends
};

}  // namespace rate_limit
