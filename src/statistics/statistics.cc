// Adds to stripes, and sums them up.
#include "statistics/statistics.h"

namespace rate_limit {

void ZoneStatistics::count_decision(unsigned stripe, DecidedBy decided_by, bool allowed, Micros took) {
    took = at_least_zero(took);
    Stripe& own = at(stripe);
    add(&own.requests[allowed ? 0 : 1]);
    add(&own.decided_by[static_cast<unsigned>(decided_by)]);
    add(&own.checks_sum, static_cast<std::uint64_t>(took));
    add(&own.checks[bound_of(took, kTimeBoundsMicros)]);
}

ZoneTotals ZoneStatistics::read() const {
    ZoneTotals totals = {};
    for (const Stripe& stripe : stripes_) {
        totals.allowed += load(stripe.requests[0]);
        totals.rejected += load(stripe.requests[1]);
        totals.delayed += load(stripe.delayed);
        totals.aborted += load(stripe.aborted);
        totals.dry_run_rejected += load(stripe.dry_run[0]);
        totals.dry_run_delayed += load(stripe.dry_run[1]);
        add_all(stripe.decided_by, totals.decided_by);
        add_all(stripe.reasons, totals.reasons);
        add_histogram<kTimeBounds>(stripe.checks, stripe.checks_sum, &totals.checks);
        add_all(stripe.shadows[0], totals.shadows[0]);
        add_all(stripe.shadows[1], totals.shadows[1]);
        add_all(stripe.bypassed, totals.bypassed);
        add_all(stripe.settled, totals.settled);
    }
    return totals;
}

ZoneHistory::Moment ZoneStatistics::read_moment(Micros now) const {
    ZoneHistory::Moment moment = {now, {}};
    for (const Stripe& stripe : stripes_) {
        moment.counts[kCountAllowed] += load(stripe.requests[0]);
        moment.counts[kCountRejected] += load(stripe.requests[1]);
        moment.counts[kCountDelayed] += load(stripe.delayed);
        for (const Counter& reason : stripe.reasons) {
            moment.counts[kCountErrors] += load(reason);
        }
    }
    return moment;
}

}  // namespace rate_limit
