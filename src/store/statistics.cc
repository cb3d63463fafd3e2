// Adds to stripes, and adds them up.
#include "store/statistics.h"

#include <algorithm>

namespace rate_limit {
namespace {

// The first bound that a value is not above, or their number.
template <class Value, unsigned kBounds>
unsigned place_of(Value value, const Value (&bounds)[kBounds]) {
    unsigned place = 0;
    while (place < kBounds && value > bounds[place]) {
        place++;
    }
    return place;
}

std::uint64_t load(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

template <unsigned kSize>
void add_all(const Counter (&counters)[kSize], std::uint64_t (&sums)[kSize]) {
    for (unsigned i = 0; i < kSize; i++) {
        sums[i] += load(counters[i]);
    }
}

template <unsigned kBounds>
void add_histogram(const Counter (&counts)[kBounds + 1], const Counter& sum,
                   HistogramTotals<kBounds>* totals) {
    for (unsigned i = 0; i <= kBounds; i++) {
        const std::uint64_t count = load(counts[i]);
        totals->counts[i] += count;
        totals->count += count;
    }
    totals->sum += load(sum);
}

// A clock that was set back tells nothing of how long it took.
Micros at_least_zero(Micros took) { return std::max<Micros>(took, 0); }

}  // namespace

void ZoneStatistics::count_decision(unsigned stripe, Source source, bool allowed, Micros took) {
    took = at_least_zero(took);
    Stripe& own = at(stripe);
    add(&own.requests[allowed ? 0 : 1]);
    add(&own.sources[static_cast<unsigned>(source)]);
    add(&own.checks_sum, static_cast<std::uint64_t>(took));
    add(&own.checks[place_of(took, kTimeBoundsMicros)]);
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
        add_all(stripe.sources, totals.sources);
        add_all(stripe.reasons, totals.reasons);
        add_histogram<kTimeBounds>(stripe.checks, stripe.checks_sum, &totals.checks);
        add_all(stripe.shadows[0], totals.shadows[0]);
        add_all(stripe.shadows[1], totals.shadows[1]);
        add_all(stripe.bypassed, totals.bypassed);
    }
    return totals;
}

void RedisStatistics::count_round_trip(unsigned stripe, Micros took) {
    took = at_least_zero(took);
    add(&at(stripe).round_trips_sum, static_cast<std::uint64_t>(took));
    add(&at(stripe).round_trips[place_of(took, kTimeBoundsMicros)]);
}

void RedisStatistics::count_batch(unsigned stripe, std::size_t groups) {
    add(&at(stripe).batches_sum, groups);
    add(&at(stripe).batches[place_of<std::uint64_t>(groups, kBatchBoundsGroups)]);
}

void RedisStatistics::count_error(unsigned stripe, redis::Error error) {
    add(&at(stripe).errors[static_cast<unsigned>(error)]);
}

// Only who has an open breaker has a place, so if there is none free, it is known anyway that many have.
void RedisStatistics::set_open(bool open, const Host& host) {
    const auto own = [&](const auto& process) {
        return process.load(std::memory_order_relaxed) == host.self;
    };
    auto* found = std::find_if(open_, open_ + kProcesses, own);
    if (found != open_ + kProcesses) {
        found->store(open ? host.self : 0, std::memory_order_relaxed);
        return;
    }
    for (auto& process : open_) {
        std::uint32_t seen = process.load(std::memory_order_relaxed);
        if (open && (seen == 0 || !host.alive(seen)) &&
            process.compare_exchange_strong(seen, host.self, std::memory_order_relaxed)) {
            return;
        }
    }
}

RedisTotals RedisStatistics::read() const {
    RedisTotals totals = {};
    for (const Stripe& stripe : stripes_) {
        add_histogram<kTimeBounds>(stripe.round_trips, stripe.round_trips_sum, &totals.round_trips);
        add_histogram<kBatchBounds>(stripe.batches, stripe.batches_sum, &totals.batches);
        add_all(stripe.errors, totals.errors);
        totals.opened += load(stripe.opened);
    }
    return totals;
}

unsigned RedisStatistics::open_breakers(const Host& host) const {
    return static_cast<unsigned>(std::count_if(open_, open_ + kProcesses, [&](const auto& process) {
        const std::uint32_t seen = process.load(std::memory_order_relaxed);
        return seen != 0 && (seen == host.self || host.alive(seen));
    }));
}

void RedisCounter::on_round_trip(std::int64_t micros) {
    if (statistics_ != nullptr) {
        statistics_->count_round_trip(stripe_, micros);
    }
}

void RedisCounter::on_error(redis::Error error) {
    if (statistics_ != nullptr) {
        statistics_->count_error(stripe_, error);
    }
}

void RedisCounter::on_batch(std::size_t groups) {
    if (statistics_ != nullptr) {
        statistics_->count_batch(stripe_, groups);
    }
}

void RedisCounter::on_open() {
    open_++;
    if (statistics_ != nullptr) {
        statistics_->count_opened(stripe_);
        statistics_->set_open(true, host_);
    }
}

void RedisCounter::on_close() {
    open_--;
    if (statistics_ != nullptr && open_ == 0) {
        statistics_->set_open(false, host_);
    }
}

void RedisCounter::stop() {
    if (statistics_ != nullptr) {
        statistics_->set_open(false, host_);
    }
    statistics_ = nullptr;
}

}  // namespace rate_limit
