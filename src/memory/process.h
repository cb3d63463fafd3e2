// What the store needs of the process that it runs in.
#pragma once

#include <cstdint>

#include "core/time.h"

namespace rate_limit {

struct Process {
    std::uint32_t self;  // this process' id: not 0, below 2^31, and of no other living process
    bool (*alive)(std::uint32_t process);  // whether a process that holds a slot may still let it go
    void (*yield)();                       // lets another process run
    Micros (*clock)();                     // a clock that is never set back
    bool clock_is_shared = false;          // by all processes that use a table
};

}  // namespace rate_limit
