// Whether Redis is worth asking: opens after failures in a row, and says when to try again.
#pragma once

#include <cstdint>

#include "redis/loop.h"

namespace rate_limit::redis {

class Breaker {
  public:
    static constexpr unsigned kFailures = 5;  // in a row that open it
    static constexpr Milliseconds kFirstDelay = 50;
    static constexpr Milliseconds kLongestDelay = 1000;

    bool open() const { return failures_ == kFailures; }

    // Redis has answered a call. True if that closed the breaker.
    bool success();

    // Redis has answered a probe or a greeting: calls may be sent again, but the first that fails opens it.
    // True if that closed the breaker.
    bool half_close();

    // A call has failed. True if that opened it.
    bool failure();

    // Opens it at once. True if it was closed.
    bool trip();

    // How long to wait before the next attempt: twice as long as before, up to kLongestDelay, and by a random
    // part of up to a half shorter, so that not all workers come back at once.
    Milliseconds next_delay(std::uint32_t random);

  private:
    unsigned failures_ = 0;  // in a row; kFailures while the breaker is open
    unsigned attempts_ = 0;
};

}  // namespace rate_limit::redis
