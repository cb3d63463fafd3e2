// The expected states of clients in Redis and their expiry, calculated with core.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "client.h"
#include "lua/value.h"

namespace rate_limit {

inline bool operator==(const Decision& a, const Decision& b) {
    return a.allowed == b.allowed && a.rate == b.rate && a.limit == b.limit && a.remaining == b.remaining &&
           a.reset_after == b.reset_after && a.retry_after == b.retry_after && a.delay == b.delay &&
           a.excess_milli == b.excess_milli;
}

// The state of a single rate.
class RateState {
  public:
    RateState(const Policy& policy, const StateLayout& layout, std::uint32_t rate, const std::uint64_t* words)
        : policy_(policy), layout_(layout), words_(words) {
        policy_.rates.size = 1;
        policy_.rates.rates[0] = policy.rates.rates[rate];
        policy_.min_interval = 0;
        layout_.rates = 1;
        layout_.interval = false;
        layout_.varied = false;
    }

    // Whether a client with this state gets other decisions than a new client.
    bool matters(Micros now) const {
        return !(decide(words_, now, 0) == decide(nullptr, now, 0)) ||
               !(decide(words_, now, 1) == decide(nullptr, now, 1));
    }

    // The first time from `now` on at which the state does not matter.
    Micros end(Micros now) const {
        if (!matters(now)) {
            return now;
        }
        const Micros reset = decide(words_, now, 0).reset_after;
        if (reset >= kForever || (matters(now + reset - 1) && !matters(now + reset))) {
            return now + reset;
        }
        Micros low = now;
        Micros high = now + reset + 2 * policy_.rates.rates[0].period + 2 * kClockSlack;
        while (high - low > 1) {
            const Micros middle = low + (high - low) / 2;
            (matters(middle) ? low : high) = middle;
        }
        return high;
    }

  private:
    Decision decide(const std::uint64_t* words, Micros now, std::uint64_t cost) const {
        Check check;
        return check.evaluate(policy_, layout_, words, now, cost);
    }

    Policy policy_;
    StateLayout layout_;
    const std::uint64_t* words_;
};

// A client of one zone.
class MirroredClient {
  public:
    bool present() const { return present_; }
    const StateLayout& layout() const { return layout_; }
    const Words& words() const { return words_; }
    Micros moment() const { return moment_; }
    Micros expiry() const { return expiry_; }
    // Sets the expiry that Redis has, where several are correct.
    void set_moment(Micros moment) { moment_ = expiry_ = moment; }
    // Whether the last write changed only the time of min_interval: the expiry may then be later than needed.
    bool vague() const { return vague_; }

    void expire(Micros now) { present_ = present_ && now < moment_; }

    // The state converted to `layout`.
    Words read(const Policy& policy, const StateLayout& layout) const {
        Words words(words_of(layout));
        if (!present_ || !can_convert(layout_, layout)) {
            return words;
        }
        if (layout_ == layout) {
            return words_;
        }
        if (layout.algorithm == Algorithm::kSlidingLog || layout_.rates != layout.rates) {
            convert(layout_, left_by(policy, layout), words_.data(), layout, policy.rates, words.data());
            return words;
        }
        for (std::uint32_t i = 0; i < layout.rates; ++i) {
            functions_of(layout.algorithm)
                .convert(layout_, words_.data() + i * words_per_rate(layout_), layout,
                         words.data() + i * words_per_rate(layout));
        }
        if (has_marks(layout)) {
            words[marks_index(layout)] = words_[marks_index(layout_)];
        }
        if (layout.interval && layout_.interval) {
            words[interval_index(layout)] = words_[interval_index(layout_)];
        }
        return words;
    }

    // Stores the state after a request under `policy` at `now`. If `only_interval`, only the time of
    // min_interval has changed. The rates were charged at `time`, and need their state for `longer` more.
    void write(const Policy& policy, const StateLayout& layout, const Words& words, Micros now,
               bool only_interval, Micros time, Micros longer) {
        const RateSlots slots = has_marks(layout)
                                    ? find_rate_slots(policy.rates, layout, words[marks_index(layout)])
                                    : RateSlots();
        Micros end = now;
        for (std::uint32_t i = 0; i < policy.rates.size; ++i) {
            const std::uint64_t* at = words.data() + slots.from[i] * words_per_rate(layout);
            end = std::max(end, RateState(policy, layout, i, at).end(time) + longer);
        }
        if (layout.interval && words[interval_index(layout)] != 0) {
            end = std::max(end, static_cast<Micros>(words[interval_index(layout)]) + policy.min_interval);
        }
        if (present_ && has_expiry(layout_) && has_expiry(layout) &&
            keeps_others(policy, layout, slots, words)) {
            end = std::max(end, believed(layout.algorithm, now));
        }
        present_ = end > now;
        layout_ = layout;
        words_ = words;
        moment_ = expiry_ = end;
        vague_ = only_interval;
    }

  private:
    // The same as in lua/check.lua: a later expiry than three of the longest periods is believed only of a
    // bucket, and cut there.
    Micros believed(Algorithm algorithm, Micros now) const {
        const Micros last = now + 3 * kMaxPeriod;
        return expiry_ <= last ? expiry_ : is_bucket(algorithm) ? last : 0;
    }

    // The rate that a single slot was used with; none if its words do not tell.
    RateList left_by(const Policy& policy, const StateLayout& layout) const {
        RateList rates = {};
        if (layout_.rates != 1 || layout.rates == 1) {
            return rates;
        }
        if (layout_.algorithm == Algorithm::kSlidingBuckets) {
            rates.size = 1;
            rates.rates[0] = {1, static_cast<Micros>(words_[1] & 0xffffffff) * kSecond};
        } else if (!is_bucket(layout_.algorithm)) {
            for (std::uint32_t i = 0; i < policy.rates.size && rates.size == 0; ++i) {
                if (has_period(words_[0], policy.rates.rates[i])) {
                    rates.rates[rates.size++] = policy.rates.rates[i];
                }
            }
        }
        return rates;
    }

    static bool keeps_others(const Policy& policy, const StateLayout& layout, const RateSlots& slots,
                             const Words& words) {
        if (layout.algorithm == Algorithm::kSlidingLog) {
            return words[1] >> 32 != 0;
        }
        unsigned own = 0;
        for (std::uint32_t i = 0; i < policy.rates.size; ++i) {
            own |= 1U << slots.to[i];
        }
        for (std::uint32_t slot = 0; slot < layout.rates; ++slot) {
            if ((own >> slot & 1) == 0 && (words[marks_index(layout)] >> (slot * 8) & 0xff) != 0) {
                return true;
            }
        }
        return false;
    }

    bool present_ = false;
    bool vague_ = false;
    StateLayout layout_ = {};
    Words words_;
    Micros moment_ = 0;
    Micros expiry_ = 0;
};

// A limit of a group, and its check.
struct MirroredLimit {
    MirroredClient* client;
    const Policy* policy;
    StateLayout layout;
    std::uint64_t cost;
    Charge charge = {};  // that the group undoes
    Words words = {};
    Check check = {};
};

// Stores the state of a limit after its check at `now`. `counts`: whether the cost was charged.
inline void keep_words(const MirroredLimit& limit, const Words& before, bool counts, Micros now, Micros time,
                       Micros longer = 0) {
    bool written = limit.cost != 0 && counts;
    bool only_interval = false;
    if (!written) {
        written = limit.words != before;
        Words with_interval = before;
        if (limit.layout.interval) {
            with_interval[interval_index(limit.layout)] = limit.words[interval_index(limit.layout)];
        }
        only_interval = with_interval == limit.words;
    }
    if (written) {
        limit.client->write(*limit.policy, limit.layout, limit.words, now, only_interval, time, longer);
    }
}

// Decides a group at `now`, and charges all its limits or none; or undoes or overdraws it.
inline void mirror_group(std::vector<MirroredLimit>* group, Micros now, GroupKind kind) {
    bool admitted = true;
    for (MirroredLimit& limit : *group) {
        limit.client->expire(now);
        limit.words = limit.client->read(*limit.policy, limit.layout);
        admitted &=
            limit.check.evaluate(*limit.policy, limit.layout, limit.words.data(), now, limit.cost).allowed;
    }
    for (MirroredLimit& limit : *group) {
        const Words before = limit.words;
        if (kind >= kUndo) {
            if (limit.charge.at == kForever) {
                limit.check.give_back(limit.words.data());
            } else {
                limit.check.undo(limit.charge, kind == kUndoRequest, limit.words.data());
            }
        } else if (kind == kOverdraw) {
            limit.check.overdraw(limit.words.data());
        } else if (admitted) {
            limit.check.charge(limit.words.data());
        } else {
            limit.check.refuse(limit.words.data());
        }
        keep_words(limit, before, kind != kDecide || admitted || limit.policy->count_all, now, now);
    }
}

// The time of the last charge of a bucket.
inline Micros last_charge(const MirroredLimit& limit) {
    const RateSlots slots = has_marks(limit.layout) ? find_rate_slots(limit.policy->rates, limit.layout,
                                                                      limit.words[marks_index(limit.layout)])
                                                    : RateSlots();
    Micros last = 0;
    for (std::uint32_t i = 0; i < limit.policy->rates.size; ++i) {
        const std::uint64_t word = limit.words[slots.from[i] * words_per_rate(limit.layout)];
        last = std::max(last, static_cast<Micros>(word & ((std::uint64_t{1} << 52) - 1)));
    }
    return last;
}

// Charges a limit at `now`, even beyond the limit. Returns how many requests exceed the limit; for a bucket
// that is charged in the past, an upper bound.
inline std::uint64_t mirror_charge(MirroredLimit* limit, Micros now, Micros age) {
    limit->client->expire(now);
    limit->words = limit->client->read(*limit->policy, limit->layout);
    const Words before = limit->words;
    const bool back = is_bucket(limit->policy->algorithm) && limit->cost != 0 && age != 0;
    const Micros last = back ? last_charge(*limit) : 0;
    const Micros since = back ? std::max<Micros>(now - age, 1) : now;
    const Micros time = last - since > kClockSlack ? std::min(last, now) : since;
    const std::uint64_t left =
        limit->check.evaluate(*limit->policy, limit->layout, before.data(), time, 0).remaining;
    limit->check.evaluate(*limit->policy, limit->layout, before.data(), time, limit->cost);
    limit->check.impose(limit->words.data());
    if (back && limit->policy->min_interval != 0) {
        const std::size_t at = interval_index(limit->layout);
        const auto last = static_cast<Micros>(before[at]);
        limit->words[at] = static_cast<std::uint64_t>(last - now > kClockSlack ? now : std::max(last, now));
    }
    keep_words(*limit, before, true, now, time, now - since);
    return back ? limit->cost : limit->cost - std::min<std::uint64_t>(limit->cost, left);
}

}  // namespace rate_limit
