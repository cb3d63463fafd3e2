// A rate that was changed while nginx runs, in memory that its processes share.
//
// A change takes a number, is written to the place that the number names, and only then announced: who dies
// before that has changed nothing. Places carry a sum, so that one which was overwritten while it was read is
// not believed.
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
    static constexpr unsigned kPlaces = 4;
    static constexpr unsigned kWords = kMaxRates + 2;  // what it is, the rates, and the sum

    struct Place {
        std::atomic<std::uint64_t> words[kWords];
    };

    static std::uint64_t sum_of(std::uint64_t version, const std::uint64_t* words);
    void write(const RateList* rates);

    std::atomic<std::uint64_t> version_ = 0;
    std::atomic<std::uint64_t> begun_ = 0;  // the last number that was taken
    Place places_[kPlaces] = {};
};

// Whether two lists say the same.
bool same_rates(const RateList& a, const RateList& b);

}  // namespace rate_limit
