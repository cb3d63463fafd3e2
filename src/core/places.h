// Which of a client's states belongs to which rate, where a zone has room for several.
//
// A word beside the states marks each with the period that it was last used for, so that a rate finds its own
// again when others are added, dropped or come in another order.
#pragma once

#include <cstdint>

#include "core/shape.h"

namespace rate_limit {

// The place of the state of each rate: an index below shape.rates.
struct Places {
    std::uint8_t of_rate[kMaxRates];
};

// Finds the places of `rates` in `marks`. A rate whose period is new takes over what a period left that is no
// longer there, so that what was used stays used, or else a place that is free.
Places find_places(const RateList& rates, const Shape& shape, std::uint64_t marks);

// `marks` with those of `rates` at their places.
std::uint64_t mark_places(const RateList& rates, const Places& places, std::uint64_t marks);

// The mark of a rate's period, not 0.
std::uint8_t place_mark(const Rate& rate);

}  // namespace rate_limit
