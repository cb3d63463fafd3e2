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

// Made in memory that is all zero: nothing was ever changed.
class LiveRate {
  public:
    enum class Kind : std::uint8_t {
        kNone,   // the configuration holds
        kRates,  // these hold instead; none at all is `off`
        kTorn,   // it is being changed: ask again
    };

    // The number of the last change; 0 if there never was one.
    std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }

    // What holds since the last change, whose number goes to `*version`.
    Kind read(std::uint64_t* version, RateList* rates) const;

    void set(const RateList& rates) { write(&rates); }

    // Back to the configuration.
    void clear() { write(nullptr); }

  private:
    static constexpr unsigned kVersions = 4;
    static constexpr unsigned kWords = kMaxRates + 2;  // what it is, the rates, and the sum

    struct Version {
        std::atomic<std::uint64_t> words[kWords];
    };

    static std::uint64_t sum_of(std::uint64_t version, const std::uint64_t* words);
    void write(const RateList* rates);

    std::atomic<std::uint64_t> version_ = 0;
    std::atomic<std::uint64_t> begun_ = 0;  // the last number that was taken
    Version versions_[kVersions] = {};
};

// Whether two lists say the same.
bool same_rates(const RateList& a, const RateList& b);

}  // namespace rate_limit
