// sliding_buckets: the sum of the last sub-windows.
#include "algorithms/algorithm_functions.h"

namespace rate_limit {
namespace {

// State: the start of the newest sub-window (52 bits) and the index of its counter (12 bits); then, 32 bits
// each, or 64 in a large state, the period in seconds and a ring of counters. View: `start` is the start of
// the newest sub-window, `a` how many sub-windows it is newer than that of the state, `b` the sum of the
// counters that still count.
struct SlidingBuckets {
    static constexpr unsigned kTimeBits = 52;

    static std::uint64_t limit(const Policy&, const Rate& rate) { return rate.count; }

    static View view(const Quota& quota, const std::uint64_t* words, Micros now) {
        View v = {};
        const auto newest = static_cast<Micros>(words[0] & ((std::uint64_t{1} << kTimeBits) - 1));
        const std::uint64_t buckets = quota.layout.buckets;
        const Micros width = width_of(quota, quota.rate.period);
        const Micros period = static_cast<Micros>(get(quota.layout, words, 0)) * kSecond;
        const bool changed = period != 0 && period != quota.rate.period;
        set_moment(newest, now, &v);
        if (v.moved) {
            v.start = v.now;
        } else {
            const Micros old_width = changed ? width_of(quota, period) : width;
            const Micros passed = (v.now - newest) / old_width;
            v.a = std::min(static_cast<std::uint64_t>(passed), buckets);
            v.start = newest + passed * old_width;
        }
        if (v.a == buckets || (changed && !v.moved)) {
            v.start = v.now - v.now % width;
            v.moved = v.a != buckets;
        }
        for (std::uint64_t age = 0; age + v.a < buckets; age++) {
            v.b += counter(quota, words, age);
        }
        v.b = std::min(v.b, kMaxCount);
        return v;
    }

    static Outcome outcome(const Quota& quota, const View& v, const std::uint64_t* words,
                           std::uint64_t cost) {
        Outcome out;
        out.fits = v.b + cost <= quota.limit;
        out.remaining = quota.limit - std::min(v.b, quota.limit) - (out.fits ? cost : 0);
        if (out.fits && cost != 0) {
            out.reset_after = expiry(quota, v, 0);
        } else if (v.b != 0) {
            std::uint64_t age = 0;
            while (age + v.a + 1 < quota.layout.buckets && counter(quota, words, age) == 0) {
                age++;
            }
            out.reset_after = expiry(quota, v, age + v.a);
        }
        if (!out.fits) {
            out.retry_after =
                cost > quota.limit ? kNever : retry_after(quota, v, words, v.b + cost - quota.limit);
            out.excess_milli = excess_milli(v.b + cost - quota.limit);
        }
        return out;
    }

    // Clears the counters of new sub-windows and adds `cost` to the newest.
    static void charge(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t* words) {
        const std::uint64_t buckets = quota.layout.buckets;
        std::uint64_t head = words[0] >> kTimeBits;
        for (std::uint64_t i = 0; i < v.a; i++) {
            head = head + 1 == buckets ? 0 : head + 1;
            set(quota.layout, words, head + 1, 0);
        }
        set(quota.layout, words, 0, quota.period / kSecond);
        // The sum of all counters saturates too.
        cost = std::min(cost, kMaxCount - v.b);
        set(quota.layout, words, head + 1,
            saturating_add(quota.layout, get(quota.layout, words, head + 1), cost));
        words[0] = static_cast<std::uint64_t>(v.start) | (head << kTimeBits);
    }

    static void impose(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t* words) {
        charge(quota, v, cost, words);
    }

    static void overdraw(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t most,
                         std::uint64_t* words) {
        charge(quota, v, add_up_to(v.b, cost, most) - v.b, words);
    }

    // Lowers the counters from the newest sub-window backwards.
    static void refund(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t* words) {
        charge(quota, v, 0, words);
        const std::uint64_t buckets = quota.layout.buckets;
        std::uint64_t index = words[0] >> kTimeBits;
        for (std::uint64_t age = 0; cost != 0 && age < buckets; age++) {
            const std::uint64_t count = get(quota.layout, words, index + 1);
            const std::uint64_t part = std::min(count, cost);
            set(quota.layout, words, index + 1, count - part);
            cost -= part;
            index = index == 0 ? buckets - 1 : index - 1;
        }
    }

    static void undo(const Quota& quota, const View& v, std::uint64_t amount, const Charge& of, bool,
                     std::uint64_t* words) {
        charge(quota, v, 0, words);
        const Micros width = width_of(quota, quota.rate.period);
        const Micros behind = std::max<Micros>(v.start - of.at, 0);
        const auto age = static_cast<std::uint64_t>((behind + width - 1) / width);
        if (age >= quota.layout.buckets) {
            return;
        }
        const std::uint64_t head = words[0] >> kTimeBits;
        const std::uint64_t index = head >= age ? head - age : head + quota.layout.buckets - age;
        const std::uint64_t count = get(quota.layout, words, index + 1);
        set(quota.layout, words, index + 1, count - std::min(count, amount));
    }

    static std::uint64_t used(const Quota&, const View& v) { return v.b; }

    // After the clock was set back, sub-windows are not aligned until all of them have left the period.
    static Micros needed_until(const Quota& quota, const std::uint64_t* words, Micros) {
        const std::uint64_t buckets = quota.layout.buckets;
        const Micros width = width_of(quota, quota.rate.period);
        const auto start = static_cast<Micros>(words[0] & ((std::uint64_t{1} << kTimeBits) - 1));
        std::uint64_t age = 0;
        while (start % width == 0 && age < buckets && counter(quota, words, age) == 0) {
            age++;
        }
        return start + static_cast<Micros>(buckets - age) * width;
    }

    static void convert(const StateLayout& from_layout, const std::uint64_t* from,
                        const StateLayout& to_layout, std::uint64_t* to) {
        to[0] = from[0];
        for (std::uint64_t i = 0; i <= from_layout.buckets; i++) {
            set(to_layout, to, i, std::min(get(from_layout, from, i), max_counter(to_layout)));
        }
    }

    // The count of the sub-windows in the present period of the clock.
    static std::uint64_t window_count(const Quota& quota, const View& v, const std::uint64_t* words) {
        const std::uint64_t buckets = quota.layout.buckets;
        const auto number = static_cast<std::uint64_t>(v.start / width_of(quota, quota.rate.period));
        std::uint64_t sum = 0;
        for (std::uint64_t age = v.a; age <= number % buckets; age++) {
            sum += counter(quota, words, age - v.a);
        }
        return sum;
    }

  private:
    static Micros width_of(const Quota& quota, Micros period) {
        return (period + quota.layout.buckets - 1) / quota.layout.buckets;
    }

    static std::uint64_t get(const StateLayout& layout, const std::uint64_t* words, std::uint64_t index) {
        return layout.large ? words[1 + index]
                            : static_cast<std::uint32_t>(words[1 + index / 2] >> (index % 2 * 32));
    }

    static void set(const StateLayout& layout, std::uint64_t* words, std::uint64_t index,
                    std::uint64_t value) {
        if (layout.large) {
            words[1 + index] = value;
            return;
        }
        const unsigned shift = index % 2 * 32;
        words[1 + index / 2] =
            (words[1 + index / 2] & ~(std::uint64_t{0xffffffff} << shift)) | (value << shift);
    }

    // The counter of the sub-window `age` before the newest of the state.
    static std::uint64_t counter(const Quota& quota, const std::uint64_t* words, std::uint64_t age) {
        const std::uint64_t head = words[0] >> kTimeBits;
        return get(quota.layout, words, 1 + (head >= age ? head - age : head + quota.layout.buckets - age));
    }

    // How long the sub-window `age` before the newest of the view still counts.
    static Micros expiry(const Quota& quota, const View& v, std::uint64_t age) {
        return v.start +
               static_cast<Micros>(quota.layout.buckets - age) * width_of(quota, quota.rate.period) - v.now;
    }

    static Micros retry_after(const Quota& quota, const View& v, const std::uint64_t* words,
                              std::uint64_t need) {
        std::uint64_t age = quota.layout.buckets - v.a;
        std::uint64_t freed = 0;
        while (freed < need && age > 0) {
            age--;
            freed += counter(quota, words, age);
        }
        return expiry(quota, v, age + v.a);
    }
};

}  // namespace

const AlgorithmFunctions kSlidingBucketsFunctions = make_functions<SlidingBuckets>();

}  // namespace rate_limit
