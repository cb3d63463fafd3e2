// Sums up the counters of bodies.
#include "statistics/body_statistics.h"

namespace rate_limit {

const char* body_kind_name(BodyKind kind) { return kind == BodyKind::kRequest ? "request" : "response"; }

const char* body_result_name(BodyResult result) {
    constexpr const char* kNames[kBodyResults] = {"read",      "missing",    "malformed",
                                                  "too_large", "compressed", "not_json"};
    return kNames[static_cast<unsigned>(result)];
}

BodyTotals BodyStatistics::read() const {
    BodyTotals totals = {};
    for (const Stripe& stripe : stripes_) {
        for (unsigned kind = 0; kind < kBodyKinds; kind++) {
            add_all(stripe.counts[kind], totals.counts[kind]);
        }
    }
    return totals;
}

}  // namespace rate_limit
