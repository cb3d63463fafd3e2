// Counts failures in a row and the attempts since the last success.
#include "redis/breaker.h"

#include <algorithm>

namespace rate_limit::redis {

bool Breaker::success() {
    const bool was_open = open();
    failures_ = 0;
    attempts_ = 0;
    return was_open;
}

bool Breaker::half_close() {
    const bool was_open = open();
    failures_ -= was_open ? 1 : 0;
    return was_open;
}

bool Breaker::failure() {
    const bool was_open = open();
    failures_ = std::min(failures_ + 1, kFailures);
    return open() && !was_open;
}

bool Breaker::trip() {
    const bool was_open = open();
    failures_ = kFailures;
    return !was_open;
}

Milliseconds Breaker::next_delay(std::uint32_t random) {
    constexpr unsigned kDoublings = 5;
    const Milliseconds delay = std::min(kFirstDelay << std::min(attempts_, kDoublings), kLongestDelay);
    attempts_ = std::min(attempts_ + 1, kDoublings);
    return delay - random % (delay / 2 + 1);
}

}  // namespace rate_limit::redis
