// The clients of a zone that were rejected most in the last minutes.
//
// The Space-Saving algorithm: each minute has a list of kClients clients. If the list is full, a new client
// replaces the one with the lowest count and continues from that count. So a count may be too high by the
// count that it started from, and each client with more than 1/kClients of the rejections of a minute is on
// the list.
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
    std::uint64_t error;     // `rejected` is too high by at most this
};

// Created in memory that is all zero. `now` is by a clock that is never set back and is the same in all
// processes; it need not be exact.
class TopClients {
  public:
    static constexpr unsigned kMinutes = 5;   // the present one and those before it
    static constexpr unsigned kClients = 64;  // on the list of a minute

    // Counts a rejected request of a client, whose name has at most kLongestName bytes. Does not wait: a
    // client that is not on the list is missed while another process changes the list.
    void add(std::string_view client, Micros now, const Process& process);

    // The clients with the most rejections, at most `most`, ordered by rejected - error.
    std::vector<TopClient> read(std::size_t most, Micros now, const Process& process);

    // Rejections that add() missed.
    std::uint64_t missed() const { return missed_.load(std::memory_order_relaxed); }

  private:
    struct Entry {
        std::uint64_t error;
        std::uint8_t size;
        char name[kLongestName];
    };

    struct Minute {
        std::atomic<std::int64_t> number = 0;  // from 1; 0 for none
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

    std::atomic<std::uint32_t> lock_ = 0;  // id of the process that changes lists, or 0
    std::atomic<std::uint64_t> missed_ = 0;
    Minute minutes_[kMinutes];
};

}  // namespace rate_limit
