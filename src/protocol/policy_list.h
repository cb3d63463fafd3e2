// The policies of one call, each once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/policy.h"
#include "protocol/wire.h"
#include "redis/buffer.h"

namespace rate_limit {

class PolicyList {
  public:
    // The number that a policy has in the call; it is added if it has none yet.
    unsigned add(const Policy& policy, const StateLayout& layout);

    void clear();
    std::size_t size() const { return size_; }
    bool failed() const { return texts_.failed(); }

    // As encode_policy writes them, one after the other.
    std::string_view text() const { return texts_.view(); }

    // Takes over the text of another list. None can be added after that.
    void assign(std::string_view text);

  private:
    // A policy as those who asked first had it: what encode_policy writes of it is known then.
    struct Known {
        Policy policy;
        StateLayout layout;

        bool is(const Policy& other, const StateLayout& other_layout) const;
    };
    static constexpr std::size_t kKnown = 4;

    std::size_t size_ = 0;
    redis::Buffer texts_;
    std::uint16_t ends_[kMaxPolicies + 1] = {};
    Known known_[kKnown];  // the first of them
};

}  // namespace rate_limit
