// Which of a client's states belongs to which rate, where a zone has room for several.
//
// A word beside the states marks each with the period that it was last used for, so that a rate finds its own
// again when others are added, dropped or come in another order.
#pragma once

#include <cstdint>

#include "core/state_layout.h"

namespace rate_limit {

// For each rate, the slot where its state is to be written and the one from which it is read, which differ
// only if the first is free. Both are indices below layout.rates.
struct RateSlots {
    std::uint8_t to[kMaxRates];
    std::uint8_t from[kMaxRates];
};

// Finds the slots of `rates` in `marks`. A rate with a new period starts from the state of a period that is
// no longer among the rates, so that used quota stays used. The new rate takes a free slot if there is one;
// the old period then finds its own state again if it is configured once more.
RateSlots find_rate_slots(const RateList& rates, const StateLayout& layout, std::uint64_t marks);

// `marks` with those of `rates` at their slots.
std::uint64_t mark_rate_slots(const RateList& rates, const RateSlots& slots, std::uint64_t marks);

// The mark of a rate's period, not 0.
std::uint8_t rate_slot_mark(const Rate& rate);

}  // namespace rate_limit
