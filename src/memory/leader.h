// Elects one of the processes that share memory.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/time.h"
#include "memory/process.h"

namespace rate_limit {

// Made in memory that is all zero.
class Leader {
  public:
    enum class Lead : std::uint8_t {
        kNo,
        kNew,  // since this call
        kYes,
    };

    // Whether this process is the leader. One of the calling processes is, until it resigns, dies, or
    // has not called this for a minute.
    Lead lead(const Process& process);
    void resign(const Process& process);

  private:
    std::atomic<Micros> led_ = 0;  // when the leader last called lead()
    std::atomic<std::uint32_t> leader_ = 0;
};

}  // namespace rate_limit
