// Counts in stripes, and adds the stripes up.
#include "store/redis_statistics.h"

#include <algorithm>

namespace rate_limit {

void RedisStatistics::count_round_trip(unsigned stripe, Micros took) {
    took = at_least_zero(took);
    add(&at(stripe).round_trips_sum, static_cast<std::uint64_t>(took));
    add(&at(stripe).round_trips[bound_of(took, kTimeBoundsMicros)]);
}

void RedisStatistics::count_batch(unsigned stripe, std::size_t groups) {
    add(&at(stripe).batches_sum, groups);
    add(&at(stripe).batches[bound_of<std::uint64_t>(groups, kBatchBoundsGroups)]);
}

void RedisStatistics::count_error(unsigned stripe, redis::Error error) {
    add(&at(stripe).errors[static_cast<unsigned>(error)]);
}

void RedisStatistics::count_decided(unsigned stripe, bool native) {
    if (native) {
        add(&at(stripe).native);
    }
    // The processes share the line of this flag, and it seldom changes.
    if (is_native_.load(std::memory_order_relaxed) != native) {
        is_native_.store(native, std::memory_order_relaxed);
    }
}

// Only a process with an open breaker uses an element. If all are in use, the process is not counted.
void RedisStatistics::set_open(bool open, const Process& process) {
    const auto own = [&](const auto& entry) { return entry.load(std::memory_order_relaxed) == process.self; };
    auto* found = std::find_if(open_, open_ + kProcesses, own);
    if (found != open_ + kProcesses) {
        found->store(open ? process.self : 0, std::memory_order_relaxed);
        return;
    }
    for (auto& entry : open_) {
        std::uint32_t seen = entry.load(std::memory_order_relaxed);
        if (open && (seen == 0 || !process.alive(seen)) &&
            entry.compare_exchange_strong(seen, process.self, std::memory_order_relaxed)) {
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
        totals.native += load(stripe.native);
    }
    totals.is_native = is_native_.load(std::memory_order_relaxed);
    return totals;
}

RedisHistory::Moment RedisStatistics::read_moment(Micros now) const {
    RedisHistory::Moment moment = {now, {}};
    for (const Stripe& stripe : stripes_) {
        add_all(stripe.round_trips, moment.counts);
    }
    return moment;
}

unsigned RedisStatistics::open_breakers(const Process& process) const {
    return static_cast<unsigned>(std::count_if(open_, open_ + kProcesses, [&](const auto& entry) {
        const std::uint32_t seen = entry.load(std::memory_order_relaxed);
        return seen != 0 && (seen == process.self || process.alive(seen));
    }));
}

void RedisCounter::on_round_trip(std::int64_t micros) {
    if (statistics_ != nullptr) {
        statistics_->count_round_trip(stripe_, micros);
    }
}

void RedisCounter::on_decided(bool native) {
    if (statistics_ != nullptr) {
        statistics_->count_decided(stripe_, native);
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
        statistics_->set_open(true, process_);
    }
}

void RedisCounter::on_close() {
    open_--;
    if (statistics_ != nullptr && open_ == 0) {
        statistics_->set_open(false, process_);
    }
}

void RedisCounter::stop() {
    if (statistics_ != nullptr) {
        statistics_->set_open(false, process_);
    }
    statistics_ = nullptr;
}

}  // namespace rate_limit
