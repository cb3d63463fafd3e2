// Which of the processes that share memory does what only one should.
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
        kNew,  // and might not when it asked last
        kYes,
    };

    // Whether this process leads: of all that ask, one does, until it resigns, dies, or has not asked for a
    // minute.
    Lead lead(const Process& process);
    void resign(const Process& process);

  private:
    std::atomic<Micros> led_ = 0;  // when the leader last asked
    std::atomic<std::uint32_t> leader_ = 0;
};

}  // namespace rate_limit
