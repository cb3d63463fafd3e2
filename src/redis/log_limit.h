// How many lines a server that others name may cause in the log.
#pragma once

#include <string>

#include "redis/loop.h"

namespace rate_limit::redis {

// Admits so many lines in each period, and counts the others.
class LogLimit {
  public:
    static constexpr unsigned kMost = 20;  // in each period
    static constexpr Milliseconds kPeriod = 10'000;

    // Whether a line is logged now. If lines before it were left out, `*line` then says how many.
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
    unsigned lines_ = 0;  // since then
    std::uint64_t left_out_ = 0;
};

}  // namespace rate_limit::redis
