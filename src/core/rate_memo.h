// What values of rate=$variable were found to say, so that each is parsed once.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/policy.h"
#include "core/state_layout.h"

namespace rate_limit {

// For one thread, and for one zone: a value may fit one zone and be too much for another.
class RateMemo {
  public:
    static constexpr std::size_t kEntries = 64;
    static constexpr std::size_t kLongest = 192;  // bytes of a value; a longer one is no rate

    // The rates that `text` says; null if it says none, or none that `layout` holds with `policy`. They live
    // until the next call.
    const RateList* read(std::string_view text, const Policy& policy, const StateLayout& layout);

    // How many values were parsed; for tests.
    std::uint64_t parsed() const { return parsed_; }

  private:
    struct Entry {
        std::uint32_t size;  // of `text`; 0 in a free entry
        char text[kLongest];
        bool valid;
        RateList rates;
    };

    Entry* entry_for(std::string_view text);

    Entry entries_[kEntries] = {};
    std::uint64_t parsed_ = 0;
};

}  // namespace rate_limit
