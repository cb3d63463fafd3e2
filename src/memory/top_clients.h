// The clients of a zone that were rejected most in the last minutes.
//
// Space-Saving: each minute has a list of so many clients. Who is not on a full list takes the place of the
// one with the least count and goes on from there, so a count may be too high by what it began with, and
// nobody is missing who has more than that part of a minute's rejections.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/client_name.h"
#include "core/time.h"
#include "memory/process.h"

namespace rate_limit {

struct TopClient {
    std::string name;        // as it was added
    std::uint64_t rejected;  // requests, in the minutes that list the client
    std::uint64_t error;     // by so many at most that is too high
};

// Made in memory that is all zero. `now` is the time of a clock that is never set back, the same for all
// processes; it need not be exact.
class TopClients {
  public:
    static constexpr unsigned kMinutes = 5;   // the one that has begun and those before it
    static constexpr unsigned kClients = 64;  // on the list of a minute

    // A request of this client was rejected; its name has at most kLongestName bytes. Waits for nobody: a
    // client that is not on the list is missed if another process is putting somebody there.
    void add(std::string_view client, Micros now, const Process& process);

    // The clients that were rejected most, at most so many, by what is certain of each.
    std::vector<TopClient> read(std::size_t most, Micros now, const Process& process);

    // Rejections that were not added.
    std::uint64_t missed() const { return missed_.load(std::memory_order_relaxed); }

  private:
    struct Entry {
        std::uint64_t error;
        std::uint8_t size;
        char name[kLongestName];
    };

    struct Minute {
        std::atomic<std::int64_t> number = 0;  // counted from 1; 0 for none
        std::atomic<std::uint32_t> used = 0;
        std::atomic<std::uint64_t> hashes[kClients] = {};  // 0 while an entry is being written
        std::atomic<std::uint64_t> counts[kClients] = {};
        Entry entries[kClients] = {};
    };

    struct Found;

    static std::string_view name_of(const Entry& entry);
    static bool count(Minute* minute, std::uint64_t hash, std::string_view name);
    static unsigned index_for_new(const Minute& minute);
    static void put(Minute* minute, std::uint64_t hash, std::string_view name);
    static void copy(const Minute& minute, std::vector<Found>* found);
    static std::vector<Found> merge(std::vector<Found> found);

    static std::int64_t minute_of(Micros now) { return now / (60 * kSecond) + 1; }
    bool try_lock(const Process& process);
    bool lock(const Process& process);
    void free_from_dead(const Process& process);
    void unlock() { lock_.store(0, std::memory_order_release); }

    std::atomic<std::uint32_t> lock_ = 0;  // of who puts clients on lists: its process, or 0
    std::atomic<std::uint64_t> missed_ = 0;
    Minute minutes_[kMinutes];
};

}  // namespace rate_limit
