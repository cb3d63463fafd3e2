// Limits how often a message is logged.
#pragma once

#include <atomic>

#include "core/time.h"

namespace rate_limit {

// Created in memory that is all zero, which processes may share.
class Reminder {
  public:
    // True at most once in `every` microseconds among all processes, also after the clock was set back.
    bool is_due(Micros now, Micros every) {
        Micros last = last_.load(std::memory_order_relaxed);
        const bool due = last == 0 || now - last >= every || last - now >= every;
        return due && last_.compare_exchange_strong(last, now, std::memory_order_relaxed);
    }

  private:
    std::atomic<Micros> last_ = 0;
};

}  // namespace rate_limit
