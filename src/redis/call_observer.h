// Who is told how the calls of clients go.
#pragma once

#include <cstdint>

#include "redis/error.h"

namespace rate_limit::redis {

// May have several clients: the nodes of a cluster.
class CallObserver {
  public:
    // Microseconds of a clock that is never set back.
    virtual std::int64_t now() = 0;

    // Redis has answered so many microseconds after it was asked, with an error or without, in time or not.
    virtual void on_round_trip(std::int64_t micros) = 0;

    // A call has failed, or was repeated elsewhere because of an error.
    virtual void on_error(Error error) = 0;

    // The breaker of a client has opened, or closed or gone.
    virtual void on_open() = 0;
    virtual void on_close() = 0;

  protected:
    ~CallObserver() = default;
};

}  // namespace rate_limit::redis
