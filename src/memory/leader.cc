// Election and resignation.
#include "memory/leader.h"

namespace rate_limit {

Leader::Lead Leader::lead(const Process& process) {
    constexpr Micros kBelieved = kSecond;      // the leader is not checked within this time
    constexpr Micros kLongest = 60 * kSecond;  // after this time another process may have the id
    const Micros now = process.clock();
    std::uint32_t leader = leader_.load(std::memory_order_relaxed);
    const Micros silent = now - led_.load(std::memory_order_relaxed);
    if (leader != process.self && leader != 0 && silent < kLongest &&
        (silent < kBelieved || process.alive(leader))) {
        return Lead::kNo;
    }
    // Written before the id, so that no process sees a new leader with an old time.
    led_.store(now, std::memory_order_relaxed);
    if (leader == process.self) {
        return Lead::kYes;
    }
    return leader_.compare_exchange_strong(leader, process.self, std::memory_order_acq_rel) ? Lead::kNew
                                                                                            : Lead::kNo;
}

void Leader::resign(const Process& process) {
    std::uint32_t leader = process.self;
    leader_.compare_exchange_strong(leader, 0, std::memory_order_acq_rel);
}

}  // namespace rate_limit
