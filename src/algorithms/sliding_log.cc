// sliding_log: the time of every request.
#include "algorithms/algorithm_functions.h"
#include "core/bytes.h"

namespace rate_limit {
namespace {

// State: the time of the newest entry; the index of the oldest entry and the number of entries, 32 bits each;
// then a ring of times. Only the low log_bytes bytes of a time are kept, because no entry is further from the
// newest than these can express. A request of cost n has n entries. All rates share the log. View: `start` is
// the time of the newest entry, or the view's time if the clock was set back; `a` how many entries count
// under this rate; `b` the number of entries.
struct SlidingLog {
    static std::uint64_t limit(const Policy&, const Rate& rate) { return rate.count; }

    static View view(const Quota& quota, const std::uint64_t* words, Micros now) {
        View v = {};
        const auto newest = static_cast<Micros>(words[0]);
        set_moment(newest, now, &v);
        v.start = v.moved ? v.now : newest;
        v.b = words[1] >> 32;
        v.a = younger_than(quota.layout, words, v, quota.rate.period);
        return v;
    }

    static Outcome outcome(const Quota& quota, const View& v, const std::uint64_t* words,
                           std::uint64_t cost) {
        Outcome out;
        out.fits = v.a + cost <= quota.limit;
        out.remaining = quota.limit - std::min(v.a, quota.limit) - (out.fits ? cost : 0);
        if (out.fits && cost != 0) {
            out.reset_after = quota.rate.period;
        } else if (v.a != 0) {
            out.reset_after = v.start + quota.rate.period - v.now;
        }
        if (!out.fits) {
            const std::uint64_t oldest = v.b - v.a;
            const std::uint64_t need = v.a + cost - quota.limit;
            out.retry_after = cost > quota.limit ? kNever
                                                 : time_of(quota.layout, words, v, oldest + need - 1) +
                                                       quota.rate.period - v.now;
            out.excess_milli = excess_milli(need);
        }
        return out;
    }

    // Removes entries older than the horizon, then adds `cost` entries; replaces the oldest if the ring is
    // full.
    static void charge(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t* words) {
        const StateLayout layout = quota.layout;  // a copy, which no write to `words` can change
        std::uint64_t head = words[1] & 0xffffffff;
        std::uint64_t size = younger_than(layout, words, v, horizon_of(quota));
        head = wrap(layout, head + v.b - size);
        if (v.start != static_cast<Micros>(words[0])) {
            const std::uint64_t back = words[0] - static_cast<std::uint64_t>(v.start);
            for (std::uint64_t i = 0; i < size; i++) {
                const std::uint64_t at = wrap(layout, head + i);
                put(layout, words, at, get(layout, words, at) - back);
            }
        }
        for (std::uint64_t i = std::min<std::uint64_t>(cost, layout.log_entries); i != 0; i--) {
            put(layout, words, wrap(layout, head + size), static_cast<std::uint64_t>(v.now));
            if (size < layout.log_entries) {
                size++;
            } else {
                head = wrap(layout, head + 1);
            }
        }
        words[0] = static_cast<std::uint64_t>(cost != 0 ? v.now : v.start);
        words[1] = head | (size << 32);
    }

    static void impose(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t* words) {
        charge(quota, v, cost, words);
    }

    static void overdraw(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t most,
                         std::uint64_t* words) {
        charge(quota, v, add_up_to(v.a, cost, most) - v.a, words);
    }

    // Removes the newest entries; the one before them is then the newest.
    static void refund(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t* words) {
        charge(quota, v, 0, words);
        const std::uint64_t size = words[1] >> 32;
        if (size <= cost) {
            words[0] = words[1] = 0;
            return;
        }
        View left = v;
        left.b = size - cost;
        words[0] = static_cast<std::uint64_t>(time_of(quota.layout, words, left, left.b - 1));
        words[1] -= cost << 32;
    }

    static std::uint64_t window_count(const Quota&, const View&, const std::uint64_t*) { return 0; }

    static std::uint64_t used(const Quota&, const View& v) { return v.a; }

    // Removes entries of the time of the charge. While the clock is behind, entries get the time of the
    // newest entry.
    static void undo(const Quota& quota, const View& v, std::uint64_t amount, const Charge& of, bool,
                     std::uint64_t* words) {
        charge(quota, v, 0, words);
        View left = v;
        left.b = words[1] >> 32;
        const StateLayout layout = quota.layout;
        const std::uint64_t first = left.b - younger_than(layout, words, left, v.now - of.at + 1);
        if (first == left.b || v.now - of.at >= horizon_of(quota)) {
            return;
        }
        const Micros time = time_of(layout, words, left, first);
        std::uint64_t last = first;
        while (time - of.at <= kClockSlack && last < left.b && last - first < amount &&
               time_of(layout, words, left, last) == time) {
            last++;
        }
        if (last != first) {
            remove(layout, first, last, left, words);
        }
    }

    static Micros needed_until(const Quota&, const std::uint64_t* words, Micros longest) {
        return static_cast<Micros>(words[0]) + (words[1] >> 32 != 0 ? longest : 0);
    }

    static void convert(const StateLayout& from_layout, const std::uint64_t* from,
                        const StateLayout& to_layout, std::uint64_t* to) {
        View v = {};
        v.start = static_cast<Micros>(from[0]);
        v.b = std::min<std::uint64_t>(from[1] >> 32, from_layout.log_entries);
        std::uint64_t size = std::min<std::uint64_t>(v.b, to_layout.log_entries);
        // A log of fewer bytes cannot express times that are too far back.
        const auto furthest = static_cast<Micros>(mask(to_layout));
        while (size > 0 && v.start - time_of(from_layout, from, v, v.b - size) > furthest) {
            size--;
        }
        for (std::uint64_t i = 0; i < size; i++) {
            put(to_layout, to, i, static_cast<std::uint64_t>(time_of(from_layout, from, v, v.b - size + i)));
        }
        to[0] = from[0];
        to[1] = size << 32;
    }

  private:
    // Entries that are older matter to no rate. Where rates differ between clients, another rate may follow.
    static Micros horizon_of(const Quota& quota) {
        Micros longest = quota.layout.varied ? kMaxPeriod : 0;
        for (std::uint32_t i = 0; i < quota.policy.rates.size; i++) {
            longest = std::max(longest, quota.policy.rates.rates[i].period);
        }
        return longest;
    }

    static std::uint64_t wrap(const StateLayout& layout, std::uint64_t index) {
        return index >= layout.log_entries ? index - layout.log_entries : index;
    }

    static std::uint64_t mask(const StateLayout& layout) {
        return (std::uint64_t{1} << (layout.log_bytes * 8)) - 1;
    }

    static std::uint64_t get(const StateLayout& layout, const std::uint64_t* words, std::uint64_t index) {
        const char* at = reinterpret_cast<const char*>(words + 2) + index * layout.log_bytes;
        return layout.log_bytes == kNarrowLogBytes ? little_endian<kNarrowLogBytes>(at)
                                                   : little_endian<kWideLogBytes>(at);
    }

    static void put(const StateLayout& layout, std::uint64_t* words, std::uint64_t index,
                    std::uint64_t time) {
        char* at = reinterpret_cast<char*>(words + 2) + index * layout.log_bytes;
        if (layout.log_bytes == kNarrowLogBytes) {
            put_little_endian<kNarrowLogBytes>(at, time);
        } else {
            put_little_endian<kWideLogBytes>(at, time);
        }
    }

    // Removes the entries from index `first` to before `last`.
    static void remove(const StateLayout& layout, std::uint64_t first, std::uint64_t last, const View& v,
                       std::uint64_t* words) {
        const std::uint64_t head = words[1] & 0xffffffff;
        const std::uint64_t size = v.b - (last - first);
        if (size == 0) {
            words[0] = words[1] = 0;
            return;
        }
        const Micros newest = time_of(layout, words, v, last == v.b ? first - 1 : v.b - 1);
        for (std::uint64_t i = last; i < v.b; i++) {
            put(layout, words, wrap(layout, head + first + i - last),
                get(layout, words, wrap(layout, head + i)));
        }
        words[0] = static_cast<std::uint64_t>(newest);
        words[1] = head | (size << 32);
    }

    // The time of the entry that `index` others precede.
    static Micros time_of(const StateLayout& layout, const std::uint64_t* words, const View& v,
                          std::uint64_t index) {
        const std::uint64_t entry = get(layout, words, wrap(layout, (words[1] & 0xffffffff) + index));
        return v.start - static_cast<Micros>((words[0] - entry) & mask(layout));
    }

    static std::uint64_t younger_than(const StateLayout& layout, const std::uint64_t* words, const View& v,
                                      Micros age) {
        std::uint64_t low = 0;
        std::uint64_t high = v.b;
        while (low < high) {
            const std::uint64_t middle = (low + high) / 2;
            if (v.now - time_of(layout, words, v, middle) < age) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        return v.b - low;
    }
};

}  // namespace

const AlgorithmFunctions kSlidingLogFunctions = make_functions<SlidingLog>();

}  // namespace rate_limit
