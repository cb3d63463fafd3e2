// Which state of a client belongs to which rate, if a zone has room for several.
//
// A word beside the states has a mark of the period of each state. So a rate finds its state again after
// other rates were added or removed, or their order changed.
#pragma once

#include <cstdint>

#include "algorithms/state_layout.h"

namespace rate_limit {

// For each rate, the slot where its state is written and the slot where it is read. They differ only if the
// former is free. Both are indices below layout.rates.
struct RateSlots {
    std::uint8_t to[kMaxRates];
    std::uint8_t from[kMaxRates];
};

// Finds the slots of `rates` in `marks`. A rate with a new period starts from the state of a period that is
// no longer among the rates, so that used quota stays used. The new rate is written to a free slot if there
// is one; the old period then finds its state again if it is configured once more.
RateSlots find_rate_slots(const RateList& rates, const StateLayout& layout, std::uint64_t marks);

// `marks` with the marks of `rates` at their slots.
std::uint64_t mark_rate_slots(const RateList& rates, const RateSlots& slots, std::uint64_t marks);

// The mark of a rate's period, not 0.
std::uint8_t rate_slot_mark(const Rate& rate);

}  // namespace rate_limit
