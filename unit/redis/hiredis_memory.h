// Counts the memory of hiredis, now and at its peak.
#pragma once

#include <hiredis/alloc.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace rate_limit::redis {

// Counts during its lifetime. All contexts must be created and freed within it.
class HiredisMemory {
  public:
    HiredisMemory() {
        hiredisAllocFuncs counting = {};
        counting.mallocFn = [](std::size_t size) { return taken(std::malloc(size)); };
        counting.callocFn = [](std::size_t count, std::size_t size) {
            return taken(std::calloc(count, size));
        };
        counting.reallocFn = [](void* at, std::size_t size) {
            in_use -= at != nullptr ? malloc_usable_size(at) : 0;
            return taken(std::realloc(at, size));
        };
        counting.strdupFn = [](const char* text) { return static_cast<char*>(taken(strdup(text))); };
        counting.freeFn = [](void* at) {
            in_use -= at != nullptr ? malloc_usable_size(at) : 0;
            std::free(at);
        };
        before_ = hiredisSetAllocators(&counting);
        in_use = most = 0;
    }
    ~HiredisMemory() { hiredisSetAllocators(&before_); }
    HiredisMemory(const HiredisMemory&) = delete;
    HiredisMemory& operator=(const HiredisMemory&) = delete;

    static inline std::size_t in_use = 0;
    static inline std::size_t most = 0;

  private:
    static void* taken(void* at) {
        in_use += at != nullptr ? malloc_usable_size(at) : 0;
        most = std::max(most, in_use);
        return at;
    }

    hiredisAllocFuncs before_ = {};
};

}  // namespace rate_limit::redis
