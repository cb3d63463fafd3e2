// The algorithms once more, from their definitions: slow, exact, and for a clock that only moves forward.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/policy.h"

namespace rate_limit {

__extension__ using Int128 = __int128;

// One rate of a policy. Everything is told by one predicate: whether a cost fits at a moment.
class Model {
  public:
    Model(const Policy& policy, const Rate& rate)
        : policy_(policy), count_(rate.count), period_(rate.period), limit_(capacity_of(policy, rate)) {}

    bool fits(Micros now, std::uint64_t cost) const {
        const Int128 room = static_cast<Int128>(limit_) - static_cast<Int128>(cost);
        switch (policy_.algorithm) {
            case Algorithm::kTokenBucket:
            case Algorithm::kLeakyBucket:
            case Algorithm::kGcra:
                return level(now) <= room * period_;
            case Algorithm::kFixedWindow:
                if (policy_.align_first) {
                    return (started_ && now < start_ + period_ ? charged(start_, now) : 0) <= room;
                }
                return charged(now - now % period_, now) <= room;
            case Algorithm::kSlidingWindow: {
                const Micros window = now - now % period_;
                const Micros overlap = period_ - now % period_;
                return charged(window - period_, window - 1) * overlap <=
                       (room - charged(window, now)) * period_;
            }
            case Algorithm::kSlidingBuckets: {
                const Micros part = sub_window();
                return charged((now / part - policy_.buckets + 1) * part, now) <= room;
            }
            case Algorithm::kSlidingLog:
                return charged(now - period_ + 1, now) <= room;
        }
        return false;
    }

    void charge(Micros now, std::uint64_t cost) {
        level_ = level(now) + static_cast<Int128>(cost) * period_;
        last_ = now;
        if (!started_ || now >= start_ + period_) {
            started_ = true;
            start_ = now;
        }
        history_.push_back({now, (history_.empty() ? 0 : history_.back().sum) + cost});
    }

    std::uint64_t limit() const { return limit_; }

    std::uint64_t remaining(Micros now) const {
        std::uint64_t fit = 0;
        std::uint64_t not_fit = limit_ + 1;
        while (not_fit - fit > 1) {
            const std::uint64_t middle = fit + (not_fit - fit) / 2;
            (fits(now, middle) ? fit : not_fit) = middle;
        }
        return fit;
    }

    Micros retry_after(Micros now, std::uint64_t cost) const {
        if (fits(now, cost)) {
            return 0;
        }
        if (cost > limit_) {
            return kNever;
        }
        Micros too_early = 0;
        Micros enough = horizon();
        while (enough - too_early > 1) {
            const Micros middle = too_early + (enough - too_early) / 2;
            (fits(now + middle, cost) ? enough : too_early) = middle;
        }
        return enough;
    }

    Micros reset_after(Micros now) const { return retry_after(now, limit_); }

    // Work that waits before a request at `now`, in units of 1/period request.
    Int128 level(Micros now) const {
        return std::max<Int128>(0, level_ - static_cast<Int128>(count_) * (now - last_));
    }

    Micros sub_window() const { return (period_ + policy_.buckets - 1) / policy_.buckets; }

  private:
    struct Charge {
        Micros time;
        std::uint64_t sum;  // of all costs up to this one
    };

    // The sum of what was charged from `from` to `to`, both included.
    Int128 charged(Micros from, Micros to) const {
        const auto later = [](Micros time, const Charge& charge) { return time < charge.time; };
        const auto sum_before = [&](Micros time) -> std::uint64_t {
            const auto after = std::upper_bound(history_.begin(), history_.end(), time, later);
            return after == history_.begin() ? 0 : (after - 1)->sum;
        };
        return static_cast<Int128>(sum_before(to)) - static_cast<Int128>(sum_before(from - 1));
    }

    // Long enough for whatever was charged to be forgotten.
    Micros horizon() const {
        const Int128 drained = static_cast<Int128>(limit_) * period_ / count_ + 1;
        return static_cast<Micros>(
            std::min<Int128>(std::max<Int128>(drained, Int128{3} * period_), kForever));
    }

    Policy policy_;
    std::uint64_t count_;
    Micros period_;
    std::uint64_t limit_;
    Int128 level_ = 0;
    Micros last_ = 0;
    bool started_ = false;
    Micros start_ = 0;
    std::vector<Charge> history_;
};

}  // namespace rate_limit
