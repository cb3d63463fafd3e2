// The functions of each algorithm, and how check.cc calls them.
#pragma once

#include <cstdint>

#include "algorithms/algorithm.h"
#include "core/algorithm_table.h"
#include "core/decision.h"

namespace rate_limit {

// The charge of an admitted request, as a later refund needs it.
struct Charge {
    std::uint64_t cost;
    Micros at;  // the time of the decision, by the clock of the windows
};

// `words` is the state of the quota's rate. For StateKind::kLog it is the state of all rates: the functions
// that write are then called once, with the first rate.
struct AlgorithmFunctions {
    // Sets `*view` to the state at `now` and returns what the rate says of a request.
    Outcome (*evaluate)(const Quota& quota, const std::uint64_t* words, Micros now, std::uint64_t cost,
                        View* view);

    // Writes the state after a request that was admitted, or counted though it was rejected. The cost may be
    // 0.
    void (*charge)(const Quota& quota, const View& view, std::uint64_t cost, std::uint64_t* words);

    // Writes the state after requests that were admitted elsewhere, perhaps beyond the limit.
    void (*impose)(const Quota& quota, const View& view, std::uint64_t cost, std::uint64_t* words);

    // Writes the state after a request turned out to cost more: charges `cost`, but no more than to reach
    // `most` requests.
    void (*overdraw)(const Quota& quota, const View& view, std::uint64_t cost, std::uint64_t most,
                     std::uint64_t* words);

    // Writes the state without the newest requests, as many as `cost`.
    void (*refund)(const Quota& quota, const View& view, std::uint64_t cost, std::uint64_t* words);

    // Writes the state without `amount` of a charge, as far as the charge still counts. `whole` means that
    // the request is undone, usually at once.
    void (*undo)(const Quota& quota, const View& view, std::uint64_t amount, const Charge& charge, bool whole,
                 std::uint64_t* words);

    // How many requests the present window has counted, for algorithms whose windows follow each other
    // without overlap; otherwise 0.
    std::uint64_t (*window_count)(const Quota& quota, const View& view, const std::uint64_t* words);

    // How many requests the client has used, rounded up, also beyond the limit.
    std::uint64_t (*used)(const Quota& quota, const View& view);

    // The time from which the state, as a function that writes has left it, decides as that of a new client
    // does. `longest` is the longest period of the policy.
    Micros (*needed_until)(const Quota& quota, const std::uint64_t* words, Micros longest);

    // Converts the state `from` to another layout with the same buckets. `to` is all zero.
    void (*convert)(const StateLayout& from_layout, const std::uint64_t* from, const StateLayout& to_layout,
                    std::uint64_t* to);

    // evaluate() and charge() in one call, for decide_single().
    void (*decide)(const Policy& policy, const StateLayout& layout, std::uint64_t* words, Micros now,
                   std::uint64_t cost, Decision* decision);
};

template <class A>
Outcome evaluate_by(const Quota& quota, const std::uint64_t* words, Micros now, std::uint64_t cost,
                    View* view) {
    *view = A::view(quota, words, now);
    return A::outcome(quota, *view, words, cost);
}

template <class A>
[[gnu::flatten]] void decide_by(const Policy& policy, const StateLayout& layout, std::uint64_t* words,
                                Micros now, std::uint64_t cost, Decision* decision) {
    const Rate& rate = policy.rates.rates[0];
    const Quota quota = {policy, layout, rate, A::limit(policy, rate),
                         static_cast<std::uint64_t>(rate.period)};
    View view;
    const Outcome out = evaluate_by<A>(quota, words, now, cost, &view);
    if (out.fits || view.moved) {
        A::charge(quota, view, out.fits ? cost : 0, words);
    }
    decision->allowed = out.fits;
    decision->rate = 0;
    decision->limit = quota.limit;
    decision->remaining = out.remaining;
    decision->reset_after = out.reset_after;
    decision->retry_after = out.retry_after;
    decision->delay = out.delay;
    decision->excess_milli = out.excess_milli;
    if (view.now != now) {
        decision->reset_after += out.reset_after != 0 ? view.now - now : 0;
        decision->retry_after += out.retry_after > 0 ? view.now - now : 0;
    }
}

// The functions of an algorithm from a class A with these static functions: limit, view and outcome, and
// those of AlgorithmFunctions that are not templates here.
template <class A>
constexpr AlgorithmFunctions make_functions() {
    return {evaluate_by<A>,  A::charge, A::impose,       A::overdraw, A::refund,   A::undo,
            A::window_count, A::used,   A::needed_until, A::convert,  decide_by<A>};
}

// NAME.cc of each algorithm defines these.
#define ROW(enumerator, name, state, options) extern const AlgorithmFunctions k##enumerator##Functions;
RATE_LIMIT_ALGORITHMS(ROW)
#undef ROW

inline const AlgorithmFunctions& functions_of(Algorithm algorithm) {
    static constexpr const AlgorithmFunctions* kFunctions[kAlgorithms] = {
#define ROW(enumerator, name, state, options) &k##enumerator##Functions,
        RATE_LIMIT_ALGORITHMS(ROW)
#undef ROW
    };
    return *kFunctions[static_cast<unsigned>(algorithm)];
}

}  // namespace rate_limit
