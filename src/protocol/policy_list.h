// The policies of one call, each once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "connection/buffer.h"
#include "core/policy.h"
#include "protocol/wire.h"

namespace rate_limit {

class PolicyList {
  public:
    // The index of a policy in the call. Adds the policy if the call does not have it yet. The caller ensures
    // that the list has at most kMaxPolicies.
    unsigned add(const Policy& policy, const StateLayout& layout);

    void clear();
    std::size_t size() const { return size_; }
    bool failed() const { return texts_.failed(); }

    // The policy records, as encode_policy writes them.
    std::string_view text() const { return texts_.view(); }

    // Copies the text of another list. No policy can be added afterwards.
    void assign(std::string_view text);

  private:
    // A policy before encoding. Comparing it with another is faster than encoding the other.
    struct Known {
        Policy policy;
        StateLayout layout;

        bool is(const Policy& other, const StateLayout& other_layout) const;
    };
    static constexpr std::size_t kKnown = 4;

    std::size_t size_ = 0;
    redis::Buffer texts_;
    std::uint16_t ends_[kMaxPolicies + 1] = {};  // record i is from ends_[i] to ends_[i + 1] of the text
    Known known_[kKnown];                        // the first kKnown policies of the list
};

}  // namespace rate_limit
