// Counters as they were in the last two minutes, second by second, in memory that all processes share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "core/time.h"

namespace rate_limit {

constexpr unsigned kHistoryMoments = 122;  // two minutes, with both ends, and one that is being written
constexpr Micros kHistoryLength = 120 * kSecond;

// The counters at a time of the clock that was passed to History::add().
template <unsigned kCounters>
struct HistoryMoment {
    Micros time;
    std::uint64_t counts[kCounters];
};

// A ring of moments. Created in memory that is all zero. Writers and readers do not wait for each other, and
// a process may die at any point. Times are by a clock that is never set back and is the same in all
// processes.
template <unsigned kCounters>
class History {
  public:
    using Moment = HistoryMoment<kCounters>;

    // Whether the next moment is due. True for one process each second, which then calls add().
    bool is_due(Micros now) {
        Micros begun = begun_.load(std::memory_order_relaxed);
        return (begun == 0 || now - begun >= kEvery) &&
               begun_.compare_exchange_strong(begun, now, std::memory_order_relaxed);
    }

    // A moment may get lost if a process sleeps for minutes between is_due() and add().
    void add(const Moment& moment) {
        const std::uint64_t number = added_.fetch_add(1, std::memory_order_relaxed) + 1;
        Entry& entry = entries_[number % kHistoryMoments];
        entry.number.store(0, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_release);
        entry.time.store(moment.time, std::memory_order_relaxed);
        for (unsigned i = 0; i < kCounters; i++) {
            entry.counts[i].store(moment.counts[i], std::memory_order_relaxed);
        }
        entry.number.store(number, std::memory_order_release);
    }

    // The moments of the last two minutes, the oldest first. Neither times nor counters ever fall.
    std::vector<Moment> read(Micros now) const {
        std::vector<Moment> moments;
        const std::uint64_t last = added_.load(std::memory_order_relaxed);
        const std::uint64_t count = std::min<std::uint64_t>(last, kHistoryMoments - 1);
        for (std::uint64_t number = last - count + 1; number <= last; number++) {
            Moment moment;
            if (read_entry(number, &moment) && now - moment.time <= kHistoryLength &&
                (moments.empty() || follows(moment, moments.back()))) {
                moments.push_back(moment);
            }
        }
        return moments;
    }

  private:
    // Each worker has a timer of one second. A moment is due a little earlier, so that the timer of the
    // worker that wrote the last moment is not too early for the next one.
    static constexpr Micros kEvery = kSecond * 9 / 10;

    struct Entry {
        std::atomic<std::uint64_t> number = 0;  // from 1; 0 while the entry is empty or being written
        std::atomic<Micros> time = 0;
        std::atomic<std::uint64_t> counts[kCounters] = {};
    };

    bool read_entry(std::uint64_t number, Moment* moment) const {
        const Entry& entry = entries_[number % kHistoryMoments];
        if (entry.number.load(std::memory_order_acquire) != number) {
            return false;
        }
        moment->time = entry.time.load(std::memory_order_relaxed);
        for (unsigned i = 0; i < kCounters; i++) {
            moment->counts[i] = entry.counts[i].load(std::memory_order_relaxed);
        }
        std::atomic_thread_fence(std::memory_order_acquire);
        return entry.number.load(std::memory_order_relaxed) == number;
    }

    static bool follows(const Moment& moment, const Moment& before) {
        bool follows = moment.time > before.time;
        for (unsigned i = 0; i < kCounters; i++) {
            follows = follows && moment.counts[i] >= before.counts[i];
        }
        return follows;
    }

    std::atomic<Micros> begun_ = 0;         // when is_due() was last true
    std::atomic<std::uint64_t> added_ = 0;  // the number of the last moment
    Entry entries_[kHistoryMoments];
};

}  // namespace rate_limit
