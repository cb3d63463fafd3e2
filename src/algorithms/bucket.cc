// token_bucket, leaky_bucket and gcra: a level that each request raises and time lowers.
//
// The three differ in their options (capacity or burst) and in delays (leaky_bucket); their arithmetic is the
// same. The level counts requests, not time, so that a changed rate does not change what was used.
#include "algorithms/algorithm_functions.h"

namespace rate_limit {
namespace {

// State: the time of the last charge (52 bits) and the level then, in whole requests (31 bits) and a
// part counted in units of 1/period of a request (45 bits), packed into two words. A large state has a word
// for each of the time, the part and the whole requests. View: `a` whole requests, `b` the part.
struct Bucket {
    static constexpr unsigned kTimeBits = 52;
    static constexpr unsigned kPartBits = 45;
    static constexpr unsigned kLowBits = 64 - kTimeBits;

    static View view(const Quota& quota, const std::uint64_t* words, Micros now) {
        View v = {};
        const Micros last = read(quota.layout, words, &v);
        set_moment(last, now, &v);
        if (v.a >= quota.limit) {
            const std::uint64_t most = std::max(most_used(quota.policy, quota.rate), quota.policy.ceiling);
            v.b = v.a >= most ? 0 : v.b;
            v.a = std::min(v.a, most);
        }
        v.b = std::min(v.b, quota.period - 1);
        if (v.now > last && (v.a | v.b) != 0) {
            drain(quota, static_cast<std::uint64_t>(v.now - last), &v);
        }
        return v;
    }

    static Outcome outcome(const Quota& quota, const View& v, const std::uint64_t*, std::uint64_t cost) {
        Outcome out;
        const std::uint64_t used = v.a + (v.b != 0 ? 1 : 0);
        const Wide after = multiply(v.a + cost, quota.period) + v.b;
        out.fits = used + cost <= quota.limit;
        if (out.fits) {
            out.remaining = quota.limit - used - cost;
            out.reset_after = as_wait(divide_up(after, quota.rate.count));
            if (quota.policy.delay != kNoDelay && cost != 0) {
                set_delay(quota, after, &out);
            }
            return out;
        }
        const Wide full = multiply(quota.limit, quota.period);
        out.remaining = quota.limit - std::min(used, quota.limit);
        out.reset_after = as_wait(divide_up(multiply(v.a, quota.period) + v.b, quota.rate.count));
        out.retry_after = cost > quota.limit ? kNever : as_wait(divide_up(after - full, quota.rate.count));
        const Wide base = takes<kTakesDelay>(quota.policy.algorithm) ? quota.period : full;
        out.excess_milli = std::min(divide((after - base) * 1000, quota.period).value, kMaxCount);
        return out;
    }

    // A request that is counted though it was rejected raises the level at most to the limit.
    static void charge(const Quota& quota, const View& before, std::uint64_t cost, std::uint64_t* words) {
        View v = before;
        if (v.a + cost > quota.limit || (v.a + cost == quota.limit && v.b != 0)) {
            const bool over = v.a >= quota.limit;
            v.b = over ? v.b : 0;
            v.a = over ? v.a : quota.limit;
        } else {
            v.a += cost;
        }
        write(quota.layout, v, words);
    }

    static void impose(const Quota& quota, const View& before, std::uint64_t cost, std::uint64_t* words) {
        View v = before;
        const std::uint64_t most = most_used(quota.policy, quota.rate);
        if (v.a + cost < most) {
            v.a += cost;
        } else if (v.a < most) {
            v.a = most;
            v.b = 0;
        }
        write(quota.layout, v, words);
    }

    static void overdraw(const Quota& quota, const View& v, std::uint64_t cost, std::uint64_t,
                         std::uint64_t* words) {
        impose(quota, v, cost, words);
    }

    static void refund(const Quota& quota, const View& before, std::uint64_t cost, std::uint64_t* words) {
        View v = before;
        v.b = v.a < cost ? 0 : v.b;
        v.a -= std::min(v.a, cost);
        write(quota.layout, v, words);
    }

    // Gives back only what cannot have drained since the charge. A request that is undone while some of its
    // charge remains costs nothing: all of its charge is given back.
    static void undo(const Quota& quota, const View& before, std::uint64_t amount, const Charge& charge,
                     bool whole, std::uint64_t* words) {
        const auto passed = static_cast<std::uint64_t>(std::max<Micros>(before.now - charge.at, 0));
        const Wide charged = multiply(charge.cost, quota.period);
        const Wide drained = multiply(passed, quota.rate.count);
        const Wide level = multiply(before.a, quota.period) + before.b;
        const Wide left = charged <= drained ? 0 : whole ? charged : charged - drained;
        const Quotient after =
            divide(level - std::min({level, left, multiply(amount, quota.period)}), quota.period);
        View v = before;
        v.a = after.value;
        v.b = after.rest;
        write(quota.layout, v, words);
    }

    static std::uint64_t window_count(const Quota&, const View&, const std::uint64_t*) { return 0; }

    static std::uint64_t used(const Quota&, const View& v) { return v.a + (v.b != 0 ? 1 : 0); }

    static Micros needed_until(const Quota& quota, const std::uint64_t* words, Micros) {
        View v = {};
        const Micros last = read(quota.layout, words, &v);
        return last + as_wait(divide_up(multiply(v.a, quota.period) + v.b, quota.rate.count));
    }

    static void convert(const StateLayout& from_layout, const std::uint64_t* from,
                        const StateLayout& to_layout, std::uint64_t* to) {
        View v = {};
        v.now = read(from_layout, from, &v);
        v.a = to_layout.large ? v.a : std::min(v.a, kMaxSmallLevel);
        write(to_layout, v, to);
    }

  private:
    static constexpr std::uint64_t kMaxSmallLevel =
        (std::uint64_t{1} << (kLowBits + 64 - kPartBits)) - 1;  // requests

    // Sets the level of a view. Returns the time of the last charge.
    static Micros read(const StateLayout& layout, const std::uint64_t* words, View* v) {
        if (layout.large) {
            v->a = words[2];
            v->b = words[1];
            return static_cast<Micros>(words[0]);
        }
        v->a = (words[0] >> kTimeBits) | ((words[1] >> kPartBits) << kLowBits);
        v->b = words[1] & ((std::uint64_t{1} << kPartBits) - 1);
        return static_cast<Micros>(words[0] & ((std::uint64_t{1} << kTimeBits) - 1));
    }

    static void write(const StateLayout& layout, const View& v, std::uint64_t* words) {
        if (layout.large) {
            words[0] = static_cast<std::uint64_t>(v.now);
            words[1] = v.b;
            words[2] = v.a;
            return;
        }
        words[0] = static_cast<std::uint64_t>(v.now) | (v.a << kTimeBits);
        words[1] = v.b | ((v.a >> kLowBits) << kPartBits);
    }

    static void drain(const Quota& quota, std::uint64_t elapsed, View* v) {
        const Wide before = multiply(v->a, quota.period) + v->b;
        const Wide gone = multiply(elapsed, quota.rate.count);
        if (gone >= before) {
            v->a = v->b = 0;
            return;
        }
        const Quotient left = divide(before - gone, quota.period);
        v->a = left.value;
        v->b = left.rest;
    }

    // As in a queue: a request waits until at most `delay` requests are before it. A request of cost n waits
    // for the last of its n.
    static void set_delay(const Quota& quota, Wide after, Outcome* out) {
        const Wide free = multiply(std::uint64_t{quota.policy.delay} + 1, quota.period);
        if (after <= free) {
            return;
        }
        out->delay = as_wait(divide_up(after - free, quota.rate.count));
        out->excess_milli = std::min(divide((after - quota.period) * 1000, quota.period).value, kMaxCount);
    }
};

struct TokenBucket : Bucket {
    static std::uint64_t limit(const Policy& policy, const Rate& rate) {
        return policy.capacity != 0 ? policy.capacity : rate.count;
    }
};

// leaky_bucket and gcra.
struct BurstBucket : Bucket {
    static std::uint64_t limit(const Policy& policy, const Rate&) { return policy.burst + 1; }
};

}  // namespace

const AlgorithmFunctions kTokenBucketFunctions = make_functions<TokenBucket>();
const AlgorithmFunctions kLeakyBucketFunctions = make_functions<BurstBucket>();
const AlgorithmFunctions kGcraFunctions = make_functions<BurstBucket>();

}  // namespace rate_limit
