// What a zone's requests came to, and the calls to a Redis, counted by all processes in memory that they
// share.
//
// Each worker adds to a stripe of its own, so that workers do not fight for cache lines; those of an old
// configuration and a new one may share a stripe, so additions are atomic, and sums exact.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/time.h"
#include "redis/error.h"
#include "redis/watcher.h"
#include "store/host.h"
#include "store/source.h"

namespace rate_limit {

constexpr unsigned kStripes = 16;

using Counter = std::atomic<std::uint64_t>;

inline void add(Counter* counter, std::uint64_t amount = 1) {
    counter->fetch_add(amount, std::memory_order_relaxed);
}

// The upper bounds of histograms, each included; what is above the last counts beside.
constexpr unsigned kTimeBounds = 14;
constexpr Micros kTimeBoundsMicros[kTimeBounds] = {
    50, 100, 250, 500, 1'000, 2'500, 5'000, 10'000, 25'000, 50'000, 100'000, 250'000, 500'000, 1'000'000};
constexpr unsigned kBatchBounds = 11;
constexpr std::uint64_t kBatchBoundsGroups[kBatchBounds] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

// A histogram as it is read: how many values were up to each bound and above the one before.
template <unsigned kBounds>
struct HistogramTotals {
    std::uint64_t counts[kBounds + 1];  // the last: above all bounds
    std::uint64_t sum;
    std::uint64_t count;
};

using TimeTotals = HistogramTotals<kTimeBounds>;    // of microseconds
using BatchTotals = HistogramTotals<kBatchBounds>;  // of groups

struct ZoneTotals {
    std::uint64_t allowed;  // requests that the zone and all others admitted
    std::uint64_t rejected;
    std::uint64_t delayed;           // of those that were allowed
    std::uint64_t aborted;           // ended while they waited
    std::uint64_t dry_run_rejected;  // of those above: in a dry run
    std::uint64_t dry_run_delayed;
    std::uint64_t sources[kSources];  // who decided them, by Source
    std::uint64_t reasons[kReasons];  // why it was not whom the configuration says, by Reason
    TimeTotals checks;                // how long it took
    std::uint64_t shadows[2][2];      // as a candidate: what the live limits admitted, and what it would have
    std::uint64_t bypassed[kBypasses];  // requests that the zone did not apply to, by Bypass
};

// Made in memory that is all zero.
class ZoneStatistics {
  public:
    // A request was decided by the zone, from the first question to the last answer in so long.
    void count_decision(unsigned stripe, Source source, bool allowed, Micros took);

    // Beside its decision.
    void count_delay(unsigned stripe) { add(&at(stripe).delayed); }
    void count_aborted(unsigned stripe) { add(&at(stripe).aborted); }
    void count_dry_run(unsigned stripe, bool rejected) { add(&at(stripe).dry_run[rejected ? 0 : 1]); }

    // A request was not decided by whom it should be, and perhaps by nobody.
    void count_reason(unsigned stripe, Reason reason) { add(&at(stripe).reasons[reason]); }

    // A candidate would have admitted a request or not, as the live limits have or not.
    void count_shadow(unsigned stripe, bool live, bool candidate) {
        add(&at(stripe).shadows[live ? 1 : 0][candidate ? 1 : 0]);
    }

    // The zone did not apply to a request.
    void count_bypass(unsigned stripe, Bypass bypass) {
        add(&at(stripe).bypassed[static_cast<unsigned>(bypass)]);
    }

    ZoneTotals read() const;

  private:
    struct alignas(64) Stripe {
        Counter requests[2] = {};  // allowed, rejected
        Counter sources[kSources] = {};
        Counter checks_sum = 0;
        Counter checks[kTimeBounds + 1] = {};
        Counter delayed = 0;
        Counter aborted = 0;
        Counter dry_run[2] = {};  // rejected, delayed
        Counter reasons[kReasons] = {};
        Counter shadows[2][2] = {};  // by what the live limits said, and the candidate
        Counter bypassed[kBypasses] = {};
    };

    Stripe& at(unsigned stripe) { return stripes_[stripe % kStripes]; }

    Stripe stripes_[kStripes];
};

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
    void set_open(bool open, const Host& host);
    void count_opened(unsigned stripe) { add(&at(stripe).opened); }

    RedisTotals read() const;

    // How many of the living processes have an open breaker.
    unsigned open_breakers(const Host& host) const;

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
class RedisCounter final : public redis::Watcher {
  public:
    // All must outlive this.
    RedisCounter(RedisStatistics* statistics, unsigned stripe, const Host& host)
        : statistics_(statistics), stripe_(stripe), host_(host) {
        // A process with the same id may have died with an open one.
        statistics_->set_open(false, host_);
    }

    std::int64_t now() override { return host_.clock(); }
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
    const Host& host_;
    unsigned open_ = 0;  // breakers
};

}  // namespace rate_limit
