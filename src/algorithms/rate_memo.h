// Remembers values of rate=$variable, so that each is parsed once.
#pragma once

#include <cstdint>
#include <string_view>

#include "algorithms/state_layout.h"
#include "core/policy.h"

namespace rate_limit {

// For one thread and one zone: a value that fits one zone may be too large for another.
class RateMemo {
  public:
    static constexpr std::size_t kEntries = 64;
    static constexpr std::size_t kLongest = 192;  // bytes of a value; a longer value is invalid

    // The rates in `text`; null if `text` is invalid, or if `layout` has no room for the rates with `policy`.
    // The rates live until the next call.
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
