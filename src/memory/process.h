// The interface to the process: id, clock, scheduling.
#pragma once

#include <cstdint>

#include "core/time.h"

namespace rate_limit {

struct Process {
    std::uint32_t self;  // id of this process: not 0, below 2^31, unique among living processes
    bool (*alive)(std::uint32_t process);  // whether a process, which holds a lock, lives
    void (*yield)();                       // lets another process run
    Micros (*clock)();                     // a clock that is never set back
    bool clock_is_shared = false;          // `clock` is the same in all processes of a table
};

}  // namespace rate_limit
