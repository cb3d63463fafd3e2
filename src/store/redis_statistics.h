// Counters of the calls to a Redis, in memory that all processes share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "memory/process.h"
#include "memory/statistics.h"
#include "redis/call_observer.h"
#include "redis/error.h"

namespace rate_limit {

constexpr unsigned kBatchBounds = 11;
constexpr std::uint64_t kBatchBoundsGroups[kBatchBounds] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

using BatchTotals = HistogramTotals<kBatchBounds>;  // of groups

struct RedisTotals {
    TimeTotals round_trips;  // of the calls that requests wait for
    BatchTotals batches;     // groups in a call
    std::uint64_t errors[redis::kErrors];
    std::uint64_t opened;  // breakers
};

// Made in memory that is all zero.
class RedisStatistics {
  public:
    void count_round_trip(unsigned stripe, Micros took);
    void count_batch(unsigned stripe, std::size_t groups);
    void count_error(unsigned stripe, redis::Error error);

    // Whether a breaker of this process is open.
    void set_open(bool open, const Process& process);
    void count_opened(unsigned stripe) { add(&at(stripe).opened); }

    RedisTotals read() const;

    // How many of the living processes have an open breaker.
    unsigned open_breakers(const Process& process) const;

  private:
    struct alignas(64) Stripe {
        Counter round_trips_sum = 0;
        Counter round_trips[kTimeBounds + 1] = {};
        Counter batches_sum = 0;
        Counter batches[kBatchBounds + 1] = {};
        Counter errors[redis::kErrors] = {};
        Counter opened = 0;
    };

    static constexpr unsigned kProcesses = 128;  // whose breakers are known; more are as good as all

    Stripe& at(unsigned stripe) { return stripes_[stripe % kStripes]; }

    Stripe stripes_[kStripes];
    std::atomic<std::uint32_t> open_[kProcesses] = {};  // processes that have an open breaker; 0 is none
};

// Counts what the clients of one worker see. Belongs to one thread.
class RedisCounter final : public redis::CallObserver {
  public:
    // All must outlive this.
    RedisCounter(RedisStatistics* statistics, unsigned stripe, const Process& process)
        : statistics_(statistics), stripe_(stripe), process_(process) {
        // A process with the same id may have died with an open one.
        statistics_->set_open(false, process_);
    }

    std::int64_t now() override { return process_.clock(); }
    void on_round_trip(std::int64_t micros) override;
    void on_error(redis::Error error) override;
    void on_open() override;
    void on_close() override;
    void on_batch(std::size_t groups);

    // Counts nothing more: the statistics may go.
    void stop();

  private:
    RedisStatistics* statistics_;
    unsigned stripe_;
    const Process& process_;
    unsigned open_ = 0;  // breakers
};

}  // namespace rate_limit
