// How much room each algorithm takes, and how state moves to another shape.
#include "core/shape.h"

#include <algorithm>

#include "core/places.h"
#include "core/sliding_log.h"

namespace rate_limit {
namespace {

constexpr std::uint32_t kNarrowLogBytes = 4;
constexpr Micros kNarrowLogPeriod = (Micros{1} << 32) - 1;

Shape bare_shape(const Policy& policy, std::uint32_t rates) {
    Shape shape = {policy.algorithm, rates, 0, 0, 0, policy.min_interval != 0, false};
    if (policy.algorithm == Algorithm::kSlidingBuckets) {
        shape.buckets = policy.buckets;
    }
    return shape;
}

// Those that the new rates need come first, then the others for as long as there is room.
void convert_rates(const Shape& from_shape, const RateList& from_rates, const std::uint64_t* from,
                   const Shape& to_shape, const RateList& to_rates, std::uint64_t* to) {
    std::uint64_t marks = 0;
    if (has_marks(from_shape)) {
        marks = from[marks_index(from_shape)];
    } else if (from_rates.size != 0) {
        marks = place_mark(from_rates.rates[0]);
    }
    // Of all rates that are wanted and all states that there are, a place each; a state has at most one.
    Shape wide = from_shape;
    wide.rates = kMaxRates;
    const Places wanted = find_places(to_rates, wide, marks);
    const std::size_t words = words_per_rate(from_shape);
    std::uint32_t used = 0;
    std::uint64_t to_marks = 0;
    unsigned copied = 0;
    const auto copy = [&](std::uint32_t place) {
        if (place < from_shape.rates && used < to_shape.rates && (copied >> place & 1) == 0) {
            std::copy_n(from + place * words, words, to + used * words);
            to_marks |= (marks >> (place * 8) & 0xff) << (used * 8);
            copied |= 1U << place;
            used++;
        }
    };
    for (std::uint32_t i = 0; i < to_rates.size; i++) {
        copy(wanted.from[i]);
    }
    for (std::uint32_t place = 0; place < from_shape.rates; place++) {
        copy(place);
    }
    if (has_marks(to_shape)) {
        to[marks_index(to_shape)] = to_marks;
    }
}

}  // namespace

Shape shape_of(const Policy& policy) {
    Shape shape = bare_shape(policy, policy.rates.size);
    if (policy.algorithm == Algorithm::kSlidingLog) {
        shape.rates = 1;
        shape.log_bytes = kNarrowLogBytes;
        for (std::uint32_t i = 0; i < policy.rates.size; i++) {
            const Rate& rate = policy.rates.rates[i];
            shape.log_entries = std::max(shape.log_entries, rate.count);
            if (rate.period > kNarrowLogPeriod) {
                shape.log_bytes = kWideLogBytes;
            }
        }
    }
    return shape;
}

Shape shape_of(const Policy& policy, std::uint32_t rates, std::uint32_t log_entries) {
    Shape shape = bare_shape(policy, rates);
    shape.varied = true;
    if (policy.algorithm == Algorithm::kSlidingLog) {
        shape.rates = 1;
        shape.log_entries = log_entries;
        shape.log_bytes = kWideLogBytes;
    }
    return shape;
}

bool operator==(const Shape& a, const Shape& b) {
    return a.algorithm == b.algorithm && a.rates == b.rates && a.buckets == b.buckets &&
           a.log_entries == b.log_entries && a.log_bytes == b.log_bytes && a.interval == b.interval &&
           a.varied == b.varied;
}

bool holds(const Shape& shape, const Policy& policy) {
    const Shape need = shape_of(policy);
    return shape.algorithm == need.algorithm && shape.rates >= need.rates && shape.buckets == need.buckets &&
           shape.log_entries >= need.log_entries && shape.log_bytes >= need.log_bytes &&
           (shape.interval || !need.interval);
}

std::size_t words_per_rate(const Shape& shape) {
    switch (shape.algorithm) {
        case Algorithm::kSlidingBuckets:
            return 1 + (shape.buckets + 2) / 2;
        case Algorithm::kSlidingLog:
            return 2 + (std::size_t{shape.log_entries} * shape.log_bytes + 7) / 8;
        default:
            return 2;
    }
}

std::size_t words_of(const Shape& shape) { return weight_index(shape) + (shape.varied ? 1 : 0); }

std::size_t marks_index(const Shape& shape) { return words_per_rate(shape) * shape.rates; }

std::size_t weight_index(const Shape& shape) { return interval_index(shape) + (shape.interval ? 1 : 0); }

std::size_t interval_index(const Shape& shape) { return marks_index(shape) + (has_marks(shape) ? 1 : 0); }

bool can_convert(const Shape& from, const Shape& to) {
    return from.algorithm == to.algorithm && from.buckets == to.buckets;
}

void convert(const Shape& from_shape, const RateList& from_rates, const std::uint64_t* from,
             const Shape& to_shape, const RateList& to_rates, std::uint64_t* to) {
    if (from_shape.algorithm == Algorithm::kSlidingLog) {
        SlidingLog::convert(from_shape, from, to_shape, to);
    } else {
        convert_rates(from_shape, from_rates, from, to_shape, to_rates, to);
    }
    if (from_shape.interval && to_shape.interval) {
        to[interval_index(to_shape)] = from[interval_index(from_shape)];
    }
    if (from_shape.varied && to_shape.varied) {
        to[weight_index(to_shape)] = from[weight_index(from_shape)];
    }
}

}  // namespace rate_limit
