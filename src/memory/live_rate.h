// A rate that was changed while nginx runs, in memory that its processes share.
//
// A change takes the next version number, is written to the entry of that number, and is announced last: a
// process that dies before the announcement has changed nothing. Each version has a checksum, so that a
// reader detects a version that was overwritten during the read.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/rate.h"

namespace rate_limit {

// Created in memory that is all zero, which means: never changed.
class LiveRate {
  public:
    enum class Kind : std::uint8_t {
        kNone,   // the configured rate applies
        kRates,  // these rates apply instead; no rate means `off`
        kTorn,   // a change is being written: read again
    };

    // The number of the last change; 0 if there was none.
    std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }

    // The present rates; sets `*version` to the number of the last change.
    Kind read(std::uint64_t* version, RateList* rates) const;

    void set(const RateList& rates) { write(&rates); }

    // Back to the configuration.
    void clear() { write(nullptr); }

  private:
    static constexpr unsigned kVersions = 4;
    // The number of rates, the count and the period of each rate, the checksum.
    static constexpr unsigned kWords = kMaxRates * 2 + 2;

    struct Version {
        std::atomic<std::uint64_t> words[kWords];
    };

    static std::uint64_t sum_of(std::uint64_t version, const std::uint64_t* words);
    void write(const RateList* rates);

    std::atomic<std::uint64_t> version_ = 0;
    std::atomic<std::uint64_t> begun_ = 0;  // the last number that a writer took
    Version versions_[kVersions] = {};
};

// Whether two lists have the same rates in the same order.
bool same_rates(const RateList& a, const RateList& b);

}  // namespace rate_limit
