// Tables in shared memory, and requests against them.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>

#include "client.h"
#include "memory/table_check.h"
#include "test.h"

namespace rate_limit {

constexpr HashKey kKey = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
constexpr Micros kNow = kMidnight + 30 * kSecond;

// The usable size of a zone of 1 MB in nginx.
constexpr std::size_t kMegabyteZone = 1048576 - 8192;

// Ids from here on are of processes that do not exist; the test decides whether they live.
constexpr std::uint32_t kMadeUp = 1U << 30;

inline bool process_is_alive(std::uint32_t process) {
    return process >= kMadeUp || kill(static_cast<pid_t>(process), 0) == 0 || errno == EPERM;
}

inline void yield_to_others() { sched_yield(); }

inline Micros monotonic_clock() {
    timespec time = {};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * kSecond + time.tv_nsec / 1000;
}

inline double seconds() { return static_cast<double>(monotonic_clock()) * 1e-6; }

inline Process this_process() {
    return {static_cast<std::uint32_t>(getpid()), process_is_alive, yield_to_others, monotonic_clock};
}

inline Process made_up_process(std::uint32_t number) {
    Process process = this_process();
    process.self = kMadeUp + number;
    return process;
}

// A process that waits twenty times as long for a living holder, which may not run on a busy machine.
inline Process patient_process() {
    Process process = this_process();
    process.clock = [] { return monotonic_clock() / 20; };
    return process;
}

// Zeroed memory that this process and those it forks share.
class Memory {
  public:
    explicit Memory(std::size_t size) : size_(size) {
        at_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(at_ != MAP_FAILED);
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { munmap(at_, size_); }

    void* at() const { return at_; }
    std::size_t size() const { return size_; }

    template <class T>
    T* as() const {
        return static_cast<T*>(at_);
    }

  private:
    std::size_t size_;
    void* at_;
};

// The smallest memory for a table of `sets` sets of 16 slots.
inline std::size_t size_of_sets(const StateLayout& layout, std::size_t sets) {
    return Table::least_size(layout) + (sets - 1) * (16 * 12 + 16 * 8 * words_of(layout));
}

// The same with unsent counts; perhaps more than the smallest.
inline std::size_t size_with_unsent(const StateLayout& layout, std::size_t sets) {
    return size_of_sets(layout, sets) + 3 * 64 + sets * 16 * count_size(layout) + sets * 2;
}

// A table in shared memory of its own.
class Zone {
  public:
    explicit Zone(const Policy& policy, std::size_t size = kMegabyteZone)
        : Zone(policy, layout_of(policy), size) {}
    Zone(const Policy& policy, const StateLayout& layout, std::size_t size, bool unsent_counts = false,
         const HashKey& key = kKey)
        : policy_(policy), layout_(layout), memory_(size), unsent_counts_(unsent_counts), key_(key) {
        table_ = Table::create(memory_.at(), memory_.size(), layout_, key, unsent_counts);
        assert_non_null(table_);
    }

    // Creates a new table in the same memory.
    void clear() const {
        std::memset(memory_.at(), 0, memory_.size());
        Table::create(memory_.at(), memory_.size(), layout_, key_, unsent_counts_);
    }

    TableLimit limit(std::uint64_t client, std::uint64_t cost = 1) const {
        return {table_, &policy_, client, cost, {}, unsent_counts_ ? "somebody" : ""};
    }

    Verdict request(std::uint64_t client, Micros now = kNow, std::uint64_t cost = 1) const {
        TableLimit one = limit(client, cost);
        return check(&one, 1, now, this_process());
    }

    Decision look(std::uint64_t client, Micros now = kNow) const {
        TableLimit one = limit(client, 0);
        check(&one, 1, now, this_process());
        return one.decision;
    }

    // The used part of the quota of a client.
    std::uint32_t used(std::uint64_t client, Micros now = kNow) const {
        const Decision decision = look(client, now);
        return decision.limit - decision.remaining;
    }

    unsigned admitted(std::uint64_t client, unsigned requests, Micros now = kNow) const {
        unsigned count = 0;
        for (unsigned i = 0; i < requests; i++) {
            count += request(client, now) == Verdict::kAdmitted ? 1 : 0;
        }
        return count;
    }

    Table* operator->() const { return table_; }
    Table& table() const { return *table_; }
    const Policy& policy() const { return policy_; }
    Policy& policy() { return policy_; }
    const Memory& memory() const { return memory_; }

  private:
    Policy policy_;
    StateLayout layout_;
    Memory memory_;
    bool unsent_counts_;
    HashKey key_;
    Table* table_;
};

inline Zone small_zone(const Policy& policy, std::size_t sets) {
    return Zone(policy, size_of_sets(layout_of(policy), sets));
}

inline Zone zone_with_unsent_counts(const Policy& policy, std::size_t sets) {
    return Zone(policy, layout_of(policy), size_with_unsent(layout_of(policy), sets), true);
}

// The hash of a numbered client, as evenly distributed as those of a table.
inline std::uint64_t client_number(std::uint64_t number) {
    return siphash(kKey, {reinterpret_cast<const char*>(&number), sizeof number}) | 1;
}

}  // namespace rate_limit
