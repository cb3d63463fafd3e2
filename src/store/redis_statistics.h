// Counters of the calls to a Redis, in shared memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "connection/call_observer.h"
#include "connection/error.h"
#include "memory/process.h"
#include "statistics/statistics.h"

namespace rate_limit {

constexpr unsigned kBatchBounds = 11;
constexpr std::uint64_t kBatchBoundsGroups[kBatchBounds] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

using BatchTotals = HistogramTotals<kBatchBounds>;  // of groups

struct RedisTotals {
    TimeTotals round_trips;  // of calls on the request path
    BatchTotals batches;     // groups in a call
    std::uint64_t errors[redis::kErrors];
    std::uint64_t opened;  // how often a breaker opened
    std::uint64_t native;  // calls that native commands have decided
    bool is_native;        // whether a native command has decided the last call
};

// The round trips that took up to each of kTimeBoundsMicros, and above all of them.
using RedisHistory = History<kTimeBounds + 1>;

// Created in memory that is all zero. `stripe` is any number; processes with different numbers do not
// contend.
class RedisStatistics {
  public:
    void count_round_trip(unsigned stripe, Micros took);
    void count_batch(unsigned stripe, std::size_t groups);
    void count_error(unsigned stripe, redis::Error error);
    void count_decided(unsigned stripe, bool native);

    // Records whether a breaker of this process is open.
    void set_open(bool open, const Process& process);
    void count_opened(unsigned stripe) { add(&at(stripe).opened); }

    RedisTotals read() const;

    // The totals for the history, at this time.
    RedisHistory::Moment read_moment(Micros now) const;

    // How many running processes have an open breaker.
    unsigned open_breakers(const Process& process) const;

  private:
    struct alignas(64) Stripe {
        Counter round_trips_sum = 0;
        Counter round_trips[kTimeBounds + 1] = {};
        Counter batches_sum = 0;
        Counter batches[kBatchBounds + 1] = {};
        Counter errors[redis::kErrors] = {};
        Counter opened = 0;
        Counter native = 0;
    };

    static constexpr unsigned kProcesses = 128;  // the most that open_breakers() counts

    Stripe& at(unsigned stripe) { return stripes_[stripe % kStripes]; }

    Stripe stripes_[kStripes];
    std::atomic<bool> is_native_ = false;
    std::atomic<std::uint32_t> open_[kProcesses] = {};  // ids of processes with an open breaker; 0 for none
};

// Counts the calls of one worker. Belongs to one thread.
class RedisCounter final : public redis::CallObserver {
  public:
    // All that is referred to must outlive the counter, except for the statistics after stop().
    RedisCounter(RedisStatistics* statistics, unsigned stripe, const Process& process)
        : statistics_(statistics), stripe_(stripe), process_(process) {
        // A process with the same id may have died with an open breaker.
        statistics_->set_open(false, process_);
    }

    std::int64_t now() override { return process_.clock(); }
    void on_round_trip(std::int64_t micros) override;
    void on_decided(bool native) override;
    void on_error(redis::Error error) override;
    void on_open() override;
    void on_close() override;
    void on_batch(std::size_t groups);

    // Stops counting; the statistics may then be destroyed.
    void stop();

  private:
    RedisStatistics* statistics_;
    unsigned stripe_;
    const Process& process_;
    unsigned open_ = 0;  // number of open breakers
};

}  // namespace rate_limit
