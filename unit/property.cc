// Passes random traces to RapidCheck, and computes what each algorithm may admit.
#include "property.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace rate_limit {

void for_every_algorithm(const char* promise, unsigned kind,
                         const std::function<void(const Trace&)>& property) {
    setenv("RC_PARAMS", "max_success=200", 0);
    bool kept = true;
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const std::string name = std::string(algorithm_name(algorithm)) + ": " + promise;
        kept &= rc::check(name, [&] { property(*any_trace(algorithm, kind)); });
    }
    assert_true(kept);
}

std::uint64_t most_within(const std::vector<Admission>& all, Micros length) {
    std::uint64_t most = 0;
    for (std::size_t last = 0; last < all.size(); ++last) {
        std::uint64_t sum = 0;
        for (std::size_t i = last + 1; i-- > 0 && all[i].time > all[last].time - length;) {
            sum += all[i].cost;
        }
        most = std::max(most, sum);
    }
    return most;
}

bool within_bound(const Policy& policy, const std::vector<Admission>& all) {
    __extension__ using Int128 = __int128;
    const Rate& rate = policy.rates.rates[0];
    const std::uint64_t limit = capacity_of(policy, rate);
    switch (kAlgorithmTraits[static_cast<unsigned>(policy.algorithm)].state) {
        case StateKind::kLevel:
            for (std::size_t first = 0; first < all.size(); ++first) {
                Int128 sum = 0;
                for (std::size_t last = first; last < all.size(); ++last) {
                    sum += all[last].cost;
                    const Int128 length = all[last].time - all[first].time;
                    if (sum * rate.period > Int128(limit) * rate.period + rate.count * length) {
                        return false;
                    }
                }
            }
            return true;
        case StateKind::kCount:
        case StateKind::kCounts:
            // Any period overlaps two windows, and each window admits at most the limit.
            return most_within(all, rate.period) <= 2 * limit;
        case StateKind::kRing:
            return most_within(all, rate.period - (rate.period + policy.buckets - 1) / policy.buckets) <=
                   limit;
        case StateKind::kLog:
            return most_within(all, rate.period) <= limit;
    }
    return false;
}

Micros longest_wait(const Policy& policy, const Rate& rate) {
    __extension__ using Int128 = __int128;
    switch (kAlgorithmTraits[static_cast<unsigned>(policy.algorithm)].state) {
        case StateKind::kLevel: {
            const Int128 work = Int128(capacity_of(policy, rate)) * rate.period;
            return static_cast<Micros>(std::min<Int128>((work + rate.count - 1) / rate.count, kForever));
        }
        case StateKind::kCounts:
            return 2 * rate.period;
        case StateKind::kRing:
            return (rate.period + policy.buckets - 1) / policy.buckets * policy.buckets;
        default:
            return rate.period;
    }
}

}  // namespace rate_limit
