// What the Redis client needs of the event loop that it runs in.
#pragma once

#include <cstdint>
#include <string_view>

struct redisAsyncContext;

namespace rate_limit::redis {

using Milliseconds = std::uint64_t;

// Something that the loop does once after it was asked to: after a while, or at the end of its turn. Made by
// a Loop, which calls a Handler; never called from within arm.
class Alarm {
  public:
    virtual ~Alarm() = default;
    virtual void arm(Milliseconds after) = 0;  // replaces an earlier time
    virtual void disarm() = 0;
    virtual bool armed() const = 0;

    // Whether a process that is about to end waits for it, while it is armed.
    virtual void hold(bool) {}
};

enum class Severity : std::uint8_t { kError, kWarning, kNotice };

class Loop {
  public:
    using Handler = void (*)(void* self);

    virtual ~Loop() = default;

    // A timer; `holds` makes a process that is about to end wait for it. Null if there is no memory.
    virtual Alarm* make_timer(Handler handler, void* self, bool holds) = 0;

    // Rings at the end of the loop's turn in which it was armed, whatever the time given.
    virtual Alarm* make_task(Handler handler, void* self) = 0;

    // Calls redisAsyncHandleRead and redisAsyncHandleWrite when the context's socket is ready, until hiredis
    // asks for the clean-up. False if that is not possible.
    virtual bool attach(redisAsyncContext* context) = 0;

    // Milliseconds of a clock that is never set back, as of the start of the turn.
    virtual Milliseconds now() const = 0;

    virtual std::uint32_t random() = 0;
    virtual void log(Severity severity, std::string_view line) = 0;
};

}  // namespace rate_limit::redis
