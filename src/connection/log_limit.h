// A rate limit for log lines whose number a misbehaving server controls.
#pragma once

#include <string>

#include "connection/loop.h"

namespace rate_limit::redis {

// Admits kMost lines in each period, and counts the others.
class LogLimit {
  public:
    static constexpr unsigned kMost = 20;
    static constexpr Milliseconds kPeriod = 10'000;

    // Whether `*line` may be logged now. If so, and earlier lines were suppressed, appends their number to
    // the line.
    bool admit(Milliseconds now, std::string* line) {
        if (lines_ == 0 || now >= began_ + kPeriod) {
            began_ = now;
            lines_ = 0;
        }
        if (lines_ == kMost) {
            left_out_++;
            return false;
        }
        lines_++;
        if (left_out_ != 0) {
            *line += " (" + std::to_string(left_out_) + " earlier lines were not logged)";
            left_out_ = 0;
        }
        return true;
    }

  private:
    Milliseconds began_ = 0;
    unsigned lines_ = 0;  // since began_
    std::uint64_t left_out_ = 0;
};

}  // namespace rate_limit::redis
