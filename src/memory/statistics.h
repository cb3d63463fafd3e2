// Counters of a zone's requests, in memory that all processes share.
//
// Each worker adds to a stripe of its own, so that workers do not fight for cache lines; those of an old
// configuration and a new one may share a stripe, so additions are atomic, and sums exact.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/time.h"
#include "memory/decided_by.h"

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

// A histogram as it is read: how many values were up to each bound and above the one before.
template <unsigned kBounds>
struct HistogramTotals {
    std::uint64_t counts[kBounds + 1];  // the last: above all bounds
    std::uint64_t sum;
    std::uint64_t count;
};

using TimeTotals = HistogramTotals<kTimeBounds>;  // of microseconds

// The first bound that a value is not above, or their number.
template <class Value, unsigned kBounds>
unsigned bound_of(Value value, const Value (&bounds)[kBounds]) {
    unsigned bound = 0;
    while (bound < kBounds && value > bounds[bound]) {
        bound++;
    }
    return bound;
}

inline std::uint64_t load(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

template <unsigned kSize>
void add_all(const Counter (&counters)[kSize], std::uint64_t (&sums)[kSize]) {
    for (unsigned i = 0; i < kSize; i++) {
        sums[i] += load(counters[i]);
    }
}

template <unsigned kBounds>
void add_histogram(const Counter (&counts)[kBounds + 1], const Counter& sum,
                   HistogramTotals<kBounds>* totals) {
    for (unsigned i = 0; i <= kBounds; i++) {
        const std::uint64_t count = load(counts[i]);
        totals->counts[i] += count;
        totals->count += count;
    }
    totals->sum += load(sum);
}

// A clock that was set back tells nothing of how long it took.
inline Micros at_least_zero(Micros took) { return std::max<Micros>(took, 0); }

struct ZoneTotals {
    std::uint64_t allowed;  // requests that the zone and all others admitted
    std::uint64_t rejected;
    std::uint64_t delayed;           // of those that were allowed
    std::uint64_t aborted;           // ended while they waited
    std::uint64_t dry_run_rejected;  // of those above: in a dry run
    std::uint64_t dry_run_delayed;
    std::uint64_t decided_by[kDeciders];  // who decided them, by Source
    std::uint64_t reasons[kMostReasons];  // why it was not whom the configuration says, by Reason
    TimeTotals checks;                    // how long it took
    std::uint64_t shadows[2][2];  // as a candidate: what the live limits admitted, and what it would have
    std::uint64_t bypassed[kBypasses];  // requests that the zone did not apply to, by Bypass
};

// Made in memory that is all zero.
class ZoneStatistics {
  public:
    // A request was decided by the zone, from the first question to the last answer in so long.
    void count_decision(unsigned stripe, DecidedBy decided_by, bool allowed, Micros took);

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
        Counter decided_by[kDeciders] = {};
        Counter checks_sum = 0;
        Counter checks[kTimeBounds + 1] = {};
        Counter delayed = 0;
        Counter aborted = 0;
        Counter dry_run[2] = {};  // rejected, delayed
        Counter reasons[kMostReasons] = {};
        Counter shadows[2][2] = {};  // by what the live limits said, and the candidate
        Counter bypassed[kBypasses] = {};
    };

    Stripe& at(unsigned stripe) { return stripes_[stripe % kStripes]; }

    Stripe stripes_[kStripes];
};

}  // namespace rate_limit
