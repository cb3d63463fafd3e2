// Takes and gives up the lead.
#include "store/leader.h"

namespace rate_limit {

Leader::Lead Leader::lead(const Host& host) {
    constexpr Micros kBelieved = kSecond;      // for so long nobody asks whether the leader is alive
    constexpr Micros kLongest = 60 * kSecond;  // who has its id by then is somebody else
    const Micros now = host.clock();
    std::uint32_t leader = leader_.load(std::memory_order_relaxed);
    const Micros silent = now - led_.load(std::memory_order_relaxed);
    if (leader != host.self && leader != 0 && silent < kLongest &&
        (silent < kBelieved || host.alive(leader))) {
        return Lead::kNo;
    }
    // Before the lead is taken, so that nobody takes a new leader for one that has been silent.
    led_.store(now, std::memory_order_relaxed);
    if (leader == host.self) {
        return Lead::kYes;
    }
    return leader_.compare_exchange_strong(leader, host.self, std::memory_order_acq_rel) ? Lead::kNew
                                                                                         : Lead::kNo;
}

void Leader::resign(const Host& host) {
    std::uint32_t leader = host.self;
    leader_.compare_exchange_strong(leader, 0, std::memory_order_acq_rel);
}

}  // namespace rate_limit
