// A circuit breaker: opens after failures in a row, and tells when to try again.
#pragma once

#include <cstdint>

#include "connection/loop.h"

namespace rate_limit::redis {

class Breaker {
  public:
    static constexpr unsigned kFailures = 5;  // in a row; the last one opens the breaker
    static constexpr Milliseconds kFirstDelay = 50;
    static constexpr Milliseconds kLongestDelay = 1000;

    bool open() const { return failures_ == kFailures; }

    // Redis has answered a call. True if that closed the breaker.
    bool success();

    // Redis has answered a probe or the handshake: calls may be sent again, but the next failure opens the
    // breaker. True if that closed the breaker. Without effect on a closed breaker.
    bool half_close();

    // A call has failed. True if that opened the breaker.
    bool failure();

    // Opens the breaker at once. True if it was closed.
    bool trip();

    // The delay before the next attempt: kFirstDelay after a success, then twice the last one, up to
    // kLongestDelay. `random` shortens the delay by up to a half, so that workers do not reconnect all at
    // once.
    Milliseconds next_delay(std::uint32_t random);

  private:
    unsigned failures_ = 0;  // in a row; kFailures while the breaker is open
    unsigned attempts_ = 0;  // since the last success
};

}  // namespace rate_limit::redis
