// The room of each state, and conversion to another layout.
#include "algorithms/state_layout.h"

#include <algorithm>

#include "algorithms/algorithm_functions.h"
#include "algorithms/rate_slots.h"

namespace rate_limit {
namespace {

constexpr Micros kNarrowLogPeriod = (Micros{1} << 32) - 1;
constexpr std::uint64_t kTooMany = kMaxLogEntries + 1;  // entries, more than any layout holds

StateLayout bare_layout(const Policy& policy, std::uint32_t rates) {
    StateLayout layout = {policy.algorithm, rates, 0, 0, 0, policy.min_interval != 0, false, false};
    layout.large = needs_large(policy);
    if (has_state<StateKind::kRing>(policy.algorithm)) {
        layout.buckets = policy.buckets;
    }
    return layout;
}

// Copies the states that the new rates need, then others while there is room.
void convert_rates(const StateLayout& from_layout, const RateList& from_rates, const std::uint64_t* from,
                   const StateLayout& to_layout, const RateList& to_rates, std::uint64_t* to) {
    std::uint64_t marks = 0;
    if (has_marks(from_layout)) {
        marks = from[marks_index(from_layout)];
    } else if (from_rates.size != 0) {
        marks = rate_slot_mark(from_rates.rates[0]);
    }
    // A layout with kMaxRates slots finds a state for each rate.
    StateLayout wide = from_layout;
    wide.rates = kMaxRates;
    const RateSlots wanted = find_rate_slots(to_rates, wide, marks);
    const auto convert_state = functions_of(from_layout.algorithm).convert;
    const std::size_t words = words_per_rate(from_layout);
    const std::size_t to_words = words_per_rate(to_layout);
    std::uint32_t used = 0;
    std::uint64_t to_marks = 0;
    unsigned copied = 0;
    const auto copy = [&](std::uint32_t slot) {
        if (slot < from_layout.rates && used < to_layout.rates && (copied >> slot & 1) == 0) {
            convert_state(from_layout, from + slot * words, to_layout, to + used * to_words);
            to_marks |= (marks >> (slot * 8) & 0xff) << (used * 8);
            copied |= 1U << slot;
            used++;
        }
    };
    for (std::uint32_t i = 0; i < to_rates.size; i++) {
        copy(wanted.from[i]);
    }
    for (std::uint32_t slot = 0; slot < from_layout.rates; slot++) {
        copy(slot);
    }
    if (has_marks(to_layout)) {
        to[marks_index(to_layout)] = to_marks;
    }
}

}  // namespace

bool needs_large(const Policy& policy) {
    std::uint64_t most = std::max({policy.burst + 1, policy.capacity, policy.ceiling});
    if (policy.overdraft != kOneMore) {
        most = std::max(most, policy.overdraft);
    }
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        most = std::max(most, policy.rates.rates[i].count);
    }
    return most > kMaxSmallCount && !has_state<StateKind::kLog>(policy.algorithm);
}

StateLayout layout_of(const Policy& policy) {
    StateLayout layout = bare_layout(policy, policy.rates.size);
    if (has_state<StateKind::kLog>(policy.algorithm)) {
        layout.rates = 1;
        layout.log_bytes = kNarrowLogBytes;
        for (std::uint32_t i = 0; i < policy.rates.size; i++) {
            const Rate& rate = policy.rates.rates[i];
            const std::uint64_t owed = policy.overdraft == kOneMore ? rate.count : policy.overdraft;
            const std::uint64_t entries = std::max<std::uint64_t>(
                rate.count, std::min<std::uint64_t>(rate.count + std::min(owed, kMaxCount), kMaxLogEntries));
            layout.log_entries = std::max(
                layout.log_entries, static_cast<std::uint32_t>(std::min<std::uint64_t>(entries, kTooMany)));
            if (rate.period > kNarrowLogPeriod) {
                layout.log_bytes = kWideLogBytes;
            }
        }
    }
    return layout;
}

StateLayout layout_of(const Policy& policy, std::uint32_t rates, std::uint32_t log_entries,
                      std::uint64_t max_count) {
    StateLayout layout = bare_layout(policy, rates);
    layout.varied = true;
    layout.large =
        layout.large || (max_count > kMaxSmallCount && !has_state<StateKind::kLog>(policy.algorithm));
    if (has_state<StateKind::kLog>(policy.algorithm)) {
        layout.rates = 1;
        layout.log_entries = log_entries;
        layout.log_bytes = kWideLogBytes;
    }
    return layout;
}

bool operator==(const StateLayout& a, const StateLayout& b) {
    return a.algorithm == b.algorithm && a.rates == b.rates && a.buckets == b.buckets &&
           a.log_entries == b.log_entries && a.log_bytes == b.log_bytes && a.interval == b.interval &&
           a.varied == b.varied && a.large == b.large;
}

bool holds(const StateLayout& layout, const Policy& policy) {
    const StateLayout need = layout_of(policy);
    return layout.algorithm == need.algorithm && layout.rates >= need.rates &&
           layout.buckets == need.buckets && layout.log_entries >= need.log_entries &&
           layout.log_bytes >= need.log_bytes && (layout.interval || !need.interval) &&
           (layout.large || !need.large);
}

std::size_t words_per_rate(const StateLayout& layout) {
    if (has_state<StateKind::kRing>(layout.algorithm)) {
        return layout.large ? 2 + layout.buckets : 1 + (layout.buckets + 2) / 2;
    }
    if (has_state<StateKind::kLog>(layout.algorithm)) {
        return 2 + (std::size_t{layout.log_entries} * layout.log_bytes + 7) / 8;
    }
    return layout.large && !has_state<StateKind::kCount>(layout.algorithm) ? 3 : 2;
}

std::size_t words_of(const StateLayout& layout) { return weight_index(layout) + (layout.varied ? 1 : 0); }

std::size_t marks_index(const StateLayout& layout) { return words_per_rate(layout) * layout.rates; }

std::size_t weight_index(const StateLayout& layout) {
    return interval_index(layout) + (layout.interval ? 1 : 0);
}

std::size_t interval_index(const StateLayout& layout) {
    return marks_index(layout) + (has_marks(layout) ? 1 : 0);
}

bool can_convert(const StateLayout& from, const StateLayout& to) {
    return from.algorithm == to.algorithm && from.buckets == to.buckets;
}

void convert(const StateLayout& from_layout, const RateList& from_rates, const std::uint64_t* from,
             const StateLayout& to_layout, const RateList& to_rates, std::uint64_t* to) {
    if (has_state<StateKind::kLog>(from_layout.algorithm)) {
        functions_of(from_layout.algorithm).convert(from_layout, from, to_layout, to);
    } else {
        convert_rates(from_layout, from_rates, from, to_layout, to_rates, to);
    }
    if (from_layout.interval && to_layout.interval) {
        to[interval_index(to_layout)] = from[interval_index(from_layout)];
    }
    if (from_layout.varied && to_layout.varied) {
        to[weight_index(to_layout)] = from[weight_index(from_layout)];
    }
}

}  // namespace rate_limit
