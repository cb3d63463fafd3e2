// Finds a policy in a call, or adds it.
#include "protocol/policy_list.h"

namespace rate_limit {

bool PolicyList::Known::is(const Policy& other, const StateLayout& other_layout) const {
    if (policy.algorithm != other.algorithm || policy.align_first != other.align_first ||
        policy.count_all != other.count_all || policy.debt != other.debt ||
        policy.overdraft != other.overdraft || policy.burst != other.burst ||
        policy.ceiling != other.ceiling || policy.capacity != other.capacity || policy.delay != other.delay ||
        policy.min_interval != other.min_interval || policy.rates.size != other.rates.size ||
        layout.rates != other_layout.rates || layout.buckets != other_layout.buckets ||
        layout.log_entries != other_layout.log_entries || layout.varied != other_layout.varied ||
        layout.large != other_layout.large) {
        return false;
    }
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        if (policy.rates.rates[i].count != other.rates.rates[i].count ||
            policy.rates.rates[i].period != other.rates.rates[i].period) {
            return false;
        }
    }
    return true;
}

unsigned PolicyList::add(const Policy& policy, const StateLayout& layout) {
    unsigned number = 0;
    for (; number < size_ && number < kKnown; number++) {
        if (known_[number].is(policy, layout)) {
            return number;
        }
    }
    char record[kLongestPolicy];
    const std::string_view text(record, encode_policy(policy, layout, record));
    const std::string_view all = texts_.view();
    for (number = 0; number < size_; number++) {
        if (all.substr(ends_[number], ends_[number + 1] - ends_[number]) == text) {
            return number;
        }
    }
    texts_.append(text);
    if (size_ < kKnown) {
        known_[size_] = {policy, layout};
    }
    size_++;
    ends_[size_] = static_cast<std::uint16_t>(texts_.size());
    return number;
}

void PolicyList::clear() {
    size_ = 0;
    texts_.clear();
}

void PolicyList::assign(std::string_view text) {
    clear();
    texts_.append(text);
}

}  // namespace rate_limit
