// The interface to counters of calls. store/redis_statistics.h implements it.
#pragma once

#include <cstdint>

#include "connection/error.h"

namespace rate_limit::redis {

// May be shared by several clients, such as those of the nodes of a cluster.
class CallObserver {
  public:
    // Microseconds of a monotonic clock.
    virtual std::int64_t now() = 0;

    // Redis has replied to a call after this time, by an error or not, before the deadline or later.
    virtual void on_round_trip(std::int64_t micros) = 0;

    // Redis has decided a call, by a native command or by a script.
    virtual void on_decided(bool /*native*/) {}

    // A call has failed, or was sent again because of an error.
    virtual void on_error(Error error) = 0;

    // The breaker of a client has opened.
    virtual void on_open() = 0;

    // The breaker of a client has closed, or the client has ended with an open one.
    virtual void on_close() = 0;

  protected:
    ~CallObserver() = default;
};

}  // namespace rate_limit::redis
