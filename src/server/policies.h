// The policies of a call, read from their records. protocol/wire.h describes records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "algorithms/state_layout.h"
#include "core/policy.h"
#include "protocol/wire.h"

namespace rate_limit {

struct ReadPolicy {
    Policy policy;
    StateLayout layout;
    bool single;        // one rate, and no option that needs Check
    bool fixed_expiry;  // the expiry of a state with a count does not depend on the count
};

// Keeps the policies of the last call, because most calls have the same ones.
class Policies {
  public:
    // Reads the records in `text`. Returns null, or what is wrong with them.
    const char* read(std::string_view text);

    std::size_t size() const { return size_; }
    const ReadPolicy& operator[](std::size_t index) const { return policies_[index]; }

  private:
    static constexpr std::size_t kLongestKnown = 4096;

    std::size_t size_ = 0;
    std::size_t known_size_ = 0;  // of known_; 0 for none
    char known_[kLongestKnown];   // the text of the policies
    ReadPolicy policies_[kMaxPolicies];
};

}  // namespace rate_limit
