// The interface to the event loop. nginx/event_loop.cc implements it.
#pragma once

#include <cstdint>
#include <string_view>

struct redisAsyncContext;

namespace rate_limit::redis {

using Milliseconds = std::uint64_t;

// A timer or a task of a Loop. Once armed, it calls its Handler once, never from within arm(). The owner
// deletes it.
class Alarm {
  public:
    virtual ~Alarm() = default;
    virtual void arm(Milliseconds after) = 0;  // replaces an earlier time
    virtual void disarm() = 0;
    virtual bool armed() const = 0;

    // Whether a process that shuts down waits for it while it is armed.
    virtual void hold(bool) {}
};

enum class Severity : std::uint8_t { kError, kWarning, kNotice };

class Loop {
  public:
    using Handler = void (*)(void* self);

    virtual ~Loop() = default;

    // A timer. `holds`: a process that shuts down waits for it.
    virtual Alarm* make_timer(Handler handler, void* self, bool holds) = 0;

    // A task, which is called at the end of the turn of the loop in which it was armed, whatever the time.
    virtual Alarm* make_task(Handler handler, void* self) = 0;

    // Calls redisAsyncHandleRead and redisAsyncHandleWrite when the socket of the context is ready, until
    // hiredis calls the cleanup function. False if memory is exhausted, or the event loop has no connection
    // left.
    virtual bool attach(redisAsyncContext* context) = 0;

    // Milliseconds of a monotonic clock, at the start of the turn.
    virtual Milliseconds now() const = 0;

    virtual std::uint32_t random() = 0;
    virtual void log(Severity severity, std::string_view line) = 0;
};

}  // namespace rate_limit::redis
