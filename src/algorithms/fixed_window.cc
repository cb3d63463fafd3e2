// fixed_window: a counter that starts anew with each window.
#include "algorithms/algorithm_functions.h"

namespace rate_limit {
namespace {

// State: the end of the window with the mark of its period (pack_window), and the count.
// View: `start` is the end of the window, `a` the count.
struct FixedWindow {
    static std::uint64_t limit(const Policy&, const Rate& rate) { return rate.count; }

    static View view(const Quota& quota, const std::uint64_t* words, Micros now) {
        View v = {};
        const Micros end = window_end_of(words[0]);
        const Micros period = quota.rate.period;
        const bool changed = !has_period(words[0], quota.rate);
        v.now = now;
        if (now < end && !changed) {
            set_moment(end - period, now, &v);
        }
        const bool first = quota.policy.align_first;
        v.start = first ? v.now + period : window_end(v.now, period);
        if (v.now >= end) {
            // After the clock was set back, windows are not aligned: a whole one follows.
            if (!first && !changed && v.now < end + period) {
                v.start = end + period;
            }
            return v;
        }
        v.a = words[1];
        if (v.moved) {
            v.start = v.now + period;
        } else if (!changed) {
            v.start = end;
        } else {
            v.start = first ? std::min(end, v.start) : v.start;
            v.moved = true;
        }
        return v;
    }

    static Outcome outcome(const Quota& quota, const View& v, const std::uint64_t*, std::uint64_t cost) {
        Outcome out;
        const std::uint64_t used = std::min(v.a, quota.limit);
        out.fits = v.a + cost <= quota.limit;
        out.remaining = quota.limit - used - (out.fits ? cost : 0);
        out.reset_after = out.remaining < quota.limit ? v.start - v.now : 0;
        if (!out.fits) {
            out.retry_after = cost > quota.limit ? kNever : v.start - v.now;
            out.excess_milli = excess_milli(v.a + cost - quota.limit);
        }
        return out;
    }

    static void charge(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t* words) {
        write(quota, v.start, saturating_add(quota.layout, v.a, cost), words);
    }

    static void impose(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t* words) {
        charge(quota, v, cost, words);
    }

    static void overdraw(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t most,
                         std::uint64_t* words) {
        write(quota, v.start, add_up_to(v.a, cost, most), words);
    }

    static void refund(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t* words) {
        write(quota, v.start, v.a - std::min(v.a, cost), words);
    }

    static void undo(const Quota& quota, const View& v, std::uint64_t amount, const Charge& charge, bool,
                     std::uint64_t* words) {
        refund(quota, v, charge.at >= v.start - quota.rate.period ? amount : 0, words);
    }

    static std::uint64_t window_count(const Quota&, const View& v, const std::uint64_t*) { return v.a; }

    static std::uint64_t used(const Quota&, const View& v) { return v.a; }

    // After the clock was set back, windows are not aligned. The next window then begins at the end of this
    // one, so an empty state is needed too.
    static Micros needed_until(const Quota& quota, const std::uint64_t* words, Micros) {
        const Micros end = window_end_of(words[0]);
        if (end == 0 || (!quota.policy.align_first && end % quota.rate.period != 0)) {
            return end == 0 ? 0 : end + quota.rate.period;
        }
        return words[1] != 0 ? end : end - quota.rate.period;
    }

    static void convert(const StateLayout&, const std::uint64_t* from, const StateLayout& to_layout,
                        std::uint64_t* to) {
        to[0] = from[0];
        to[1] = std::min(from[1], max_counter(to_layout));
    }

  private:
    static void write(const Quota& quota, Micros end, std::uint64_t count, std::uint64_t* words) {
        // A window that starts with the first request has not started before it.
        const bool started = count != 0 || !quota.policy.align_first;
        words[0] = started ? pack_window(end, quota.rate) : 0;
        words[1] = count;
    }
};

}  // namespace

const AlgorithmFunctions kFixedWindowFunctions = make_functions<FixedWindow>();

}  // namespace rate_limit
