// Which of a client's states belongs to which rate, where a zone has room for several.
//
// A word beside the states marks each with the period that it was last used for, so that a rate finds its own
// again when others are added, dropped or come in another order.
#pragma once

#include <cstdint>

#include "core/shape.h"

namespace rate_limit {

// For each rate, the place where its state is to be written and the one from which it is read, which differ
// only if the first is free. Both are indices below shape.rates.
struct Places {
    std::uint8_t to[kMaxRates];
    std::uint8_t from[kMaxRates];
};

// Finds the places of `rates` in `marks`. A rate whose period is new begins with what another period left
// that is no longer among the rates, so that what was used stays used; it takes a free place for that, if
// there is one, so that the other finds its state again should it come back.
Places find_places(const RateList& rates, const Shape& shape, std::uint64_t marks);

// `marks` with those of `rates` at their places.
std::uint64_t mark_places(const RateList& rates, const Places& places, std::uint64_t marks);

// The mark of a rate's period, not 0.
std::uint8_t place_mark(const Rate& rate);

}  // namespace rate_limit
