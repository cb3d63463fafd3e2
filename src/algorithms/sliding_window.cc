// sliding_window: the count of this window and the overlapping part of the window before.
#include "algorithms/algorithm_functions.h"

namespace rate_limit {
namespace {

// State: the end of the window with the mark of its period (pack_window), and a word with the count of the
// window and that of the window before. The low 16 bits of both come first, so that small counts need half a
// word. A large state has a word for each count. View: `start` is the end of the window, `a` its count, `b`
// the count of the window before.
struct SlidingWindow {
    static std::uint64_t limit(const Policy&, const Rate& rate) { return rate.count; }

    static View view(const Quota& quota, const std::uint64_t* words, Micros now) {
        View v = {};
        const Micros end = window_end_of(words[0]);
        const Micros period = quota.rate.period;
        const bool changed = !has_period(words[0], quota.rate);
        v.now = now;
        read_counts(quota.layout, words, &v);
        if (now < end && !changed) {
            set_moment(end - period, now, &v);
            v.start = v.moved ? v.now + period : end;
        } else if (now < end) {
            v.start = window_end(now, period);
            v.moved = true;
        } else {
            const bool next = now < end + period;
            v.start = next && !changed ? end + period : window_end(now, period);
            if (!changed || end <= v.start - period) {
                v.b = next ? v.a : 0;
                v.a = 0;
            }
            v.moved = changed && (v.a | v.b) != 0;
        }
        if ((v.a > quota.limit || v.b > quota.limit) && !quota.policy.count_all) {
            const std::uint64_t most = most_used(quota.policy, quota.rate);
            v.a = std::min(v.a, most);
            v.b = std::min(v.b, most);
        }
        return v;
    }

    static Outcome outcome(const Quota& quota, const View& v, const std::uint64_t*, std::uint64_t cost) {
        Outcome out;
        const std::uint64_t used = SlidingWindow::used(quota, v);
        out.fits = used + cost <= quota.limit;
        out.remaining = quota.limit - std::min(used, quota.limit) - (out.fits ? cost : 0);
        if (v.a != 0 || (out.fits && cost != 0)) {
            out.reset_after = v.start + quota.rate.period - v.now;
        } else if (v.b != 0) {
            out.reset_after = v.start - v.now;
        }
        if (!out.fits) {
            out.retry_after = retry_after(quota, v, cost);
            const auto left = static_cast<std::uint64_t>(v.start - v.now);
            const Wide excess = multiply(v.a + cost, 1000) +
                                divide_up(multiply(v.b * 1000, left), quota.period) -
                                multiply(quota.limit, 1000);
            out.excess_milli = static_cast<std::uint64_t>(std::min<Wide>(excess, kMaxCount));
        }
        return out;
    }

    static void charge(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t* words) {
        write(quota, v.start, saturating_add(quota.layout, v.a, cost), v.b, words);
    }

    static void impose(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t* words) {
        charge(quota, v, cost, words);
    }

    static void overdraw(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t most,
                         std::uint64_t* words) {
        write(quota, v.start, add_up_to(v.a, cost, most), v.b, words);
    }

    static void refund(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t* words) {
        const std::uint64_t now = std::min(v.a, cost);
        write(quota, v.start, v.a - now, v.b - std::min(v.b, cost - now), words);
    }

    static void undo(const Quota& quota, const View& v, std::uint64_t amount, const Charge& charge, bool,
                     std::uint64_t* words) {
        const Micros begin = v.start - quota.rate.period;
        const bool now = charge.at >= begin;
        const bool before = !now && charge.at >= begin - quota.rate.period;
        write(quota, v.start, v.a - std::min(v.a, now ? amount : 0), v.b - std::min(v.b, before ? amount : 0),
              words);
    }

    static std::uint64_t window_count(const Quota&, const View& v, const std::uint64_t*) { return v.a; }

    static std::uint64_t used(const Quota& quota, const View& v) {
        return v.b != 0
                   ? v.a + divide_up(multiply(v.b, static_cast<std::uint64_t>(v.start - v.now)), quota.period)
                   : v.a;
    }

    // After the clock was set back, windows are not aligned. The next window then begins at the end of this
    // one, so an empty state is needed too.
    static Micros needed_until(const Quota& quota, const std::uint64_t* words, Micros) {
        View v = {};
        read_counts(quota.layout, words, &v);
        const Micros end = window_end_of(words[0]);
        if (v.a != 0 || end % quota.rate.period != 0) {
            return end + quota.rate.period;
        }
        return v.b != 0 ? end : end - quota.rate.period;
    }

    static void convert(const StateLayout& from_layout, const std::uint64_t* from,
                        const StateLayout& to_layout, std::uint64_t* to) {
        View v = {};
        read_counts(from_layout, from, &v);
        to[0] = from[0];
        write_counts(to_layout, std::min(v.a, max_counter(to_layout)), std::min(v.b, max_counter(to_layout)),
                     to);
    }

  private:
    static void read_counts(const StateLayout& layout, const std::uint64_t* words, View* v) {
        if (layout.large) {
            v->a = words[1];
            v->b = words[2];
        } else {
            v->a = (words[1] & 0xffff) | (words[1] >> 16 & 0xffff0000);
            v->b = (words[1] >> 16 & 0xffff) | (words[1] >> 32 & 0xffff0000);
        }
    }

    static void write_counts(const StateLayout& layout, std::uint64_t count, std::uint64_t count_before,
                             std::uint64_t* words) {
        if (layout.large) {
            words[1] = count;
            words[2] = count_before;
        } else {
            words[1] = (count & 0xffff) | (count_before & 0xffff) << 16 | (count >> 16) << 32 |
                       (count_before >> 16) << 48;
        }
    }

    static void write(const Quota& quota, Micros end, std::uint64_t count, std::uint64_t count_before,
                      std::uint64_t* words) {
        words[0] = pack_window(end, quota.rate);
        write_counts(quota.layout, count, count_before, words);
    }

    // The request fits when the overlapping part of the window before is small enough, or, in the next
    // window, that of this window.
    static Micros retry_after(const Quota& quota, const View& v, std::uint64_t cost) {
        if (cost > quota.limit) {
            return kNever;
        }
        const std::uint64_t room = quota.limit - cost;
        if (room >= v.a) {
            const std::uint64_t overlap = divide(multiply(room - v.a, quota.period), v.b).value;
            return v.start - static_cast<Micros>(overlap) - v.now;
        }
        const std::uint64_t overlap = divide(multiply(room, quota.period), v.a).value;
        return v.start + quota.rate.period - static_cast<Micros>(overlap) - v.now;
    }
};

}  // namespace

const AlgorithmFunctions kSlidingWindowFunctions = make_functions<SlidingWindow>();

}  // namespace rate_limit
