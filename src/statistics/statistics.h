// Counters of a zone's requests, in memory that all processes share.
//
// Each worker adds to its own stripe, so that workers do not share cache lines. Workers of an old and a new
// configuration may share a stripe, so additions are atomic.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/time.h"
#include "statistics/decided_by.h"
#include "statistics/history.h"

namespace rate_limit {

constexpr unsigned kStripes = 16;

using Counter = std::atomic<std::uint64_t>;

inline void add(Counter* counter, std::uint64_t amount = 1) {
    counter->fetch_add(amount, std::memory_order_relaxed);
}

// The upper bounds of histograms, inclusive. Values above the last bound have a counter of their own.
constexpr unsigned kTimeBounds = 14;
constexpr Micros kTimeBoundsMicros[kTimeBounds] = {
    50, 100, 250, 500, 1'000, 2'500, 5'000, 10'000, 25'000, 50'000, 100'000, 250'000, 500'000, 1'000'000};

// A histogram as it is read: for each bound, the values up to it and above the bound before.
template <unsigned kBounds>
struct HistogramTotals {
    std::uint64_t counts[kBounds + 1];  // the last one: above all bounds
    std::uint64_t sum;
    std::uint64_t count;
};

using TimeTotals = HistogramTotals<kTimeBounds>;  // of microseconds

// The index of the first bound that is not below the value, or kBounds.
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

// A negative duration is from a clock that was set back.
inline Micros at_least_zero(Micros took) { return std::max<Micros>(took, 0); }

struct ZoneTotals {
    std::uint64_t allowed;  // requests that this zone and all others admitted
    std::uint64_t rejected;
    std::uint64_t delayed;           // of the allowed requests
    std::uint64_t aborted;           // requests that ended while they waited
    std::uint64_t dry_run_rejected;  // of the requests above: in a dry run
    std::uint64_t dry_run_delayed;
    std::uint64_t decided_by[kDeciders];     // by DecidedBy
    std::uint64_t reasons[kMostReasons];     // by Reason
    TimeTotals checks;                       // durations of the decisions
    std::uint64_t shadows[2][2];             // if a shadow: by live limits admitted, shadow admitted
    std::uint64_t bypassed[kBypasses];       // requests that the zone did not apply to, by Bypass
    std::uint64_t settled[kSettledResults];  // charges that were corrected, by Settled
};

// The counters of a zone that its history has.
enum ZoneCounter : std::uint8_t {
    kCountAllowed,
    kCountRejected,
    kCountDelayed,
    kCountErrors,  // requests that the fallback decided, or nothing did
};
constexpr unsigned kZoneCounters = 4;

using ZoneHistory = History<kZoneCounters>;

// Created in memory that is all zero.
class ZoneStatistics {
  public:
    // Counts a decision of the zone. `took` is the time from its start to its end.
    void count_decision(unsigned stripe, DecidedBy decided_by, bool allowed, Micros took);

    // In addition to count_decision().
    void count_delay(unsigned stripe) { add(&at(stripe).delayed); }
    void count_aborted(unsigned stripe) { add(&at(stripe).aborted); }
    void count_dry_run(unsigned stripe, bool rejected) { add(&at(stripe).dry_run[rejected ? 0 : 1]); }

    // Counts a request that the fallback decided, or nothing did.
    void count_reason(unsigned stripe, Reason reason) { add(&at(stripe).reasons[reason]); }

    // Counts a request by whether the live limits admitted it and whether the shadow would have.
    void count_shadow(unsigned stripe, bool live, bool shadow) {
        add(&at(stripe).shadows[live ? 1 : 0][shadow ? 1 : 0]);
    }

    // Counts a request that the zone did not apply to.
    void count_bypass(unsigned stripe, Bypass bypass) {
        add(&at(stripe).bypassed[static_cast<unsigned>(bypass)]);
    }

    // Counts a charge that was corrected.
    void count_settled(unsigned stripe, Settled settled) {
        add(&at(stripe).settled[static_cast<unsigned>(settled)]);
    }

    ZoneTotals read() const;

    // The totals for the history, at this time.
    ZoneHistory::Moment read_moment(Micros now) const;

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
        Counter shadows[2][2] = {};  // by live limits admitted, shadow admitted
        Counter bypassed[kBypasses] = {};
        Counter settled[kSettledResults] = {};
    };

    Stripe& at(unsigned stripe) { return stripes_[stripe % kStripes]; }

    Stripe stripes_[kStripes];
};

}  // namespace rate_limit
