// Finds the state of each rate by the marks of periods.
#include "algorithms/rate_slots.h"

#include <utility>

namespace rate_limit {
namespace {

constexpr std::uint8_t kNowhere = 0xff;

// The first slot that is not in `taken` and whose mark fits.
template <class Fits>
std::uint8_t first_slot(const StateLayout& layout, std::uint64_t marks, unsigned taken, Fits fits) {
    for (std::uint32_t slot = 0; slot < layout.rates; slot++) {
        if ((taken >> slot & 1) == 0 && fits(static_cast<std::uint8_t>(marks >> (slot * 8)))) {
            return static_cast<std::uint8_t>(slot);
        }
    }
    return kNowhere;
}

unsigned bit_of(std::uint8_t slot) { return slot < kMaxRates ? 1U << slot : 0; }

bool is_free(std::uint8_t mark) { return mark == 0; }
bool is_used(std::uint8_t mark) { return mark != 0; }

// Sorts the slots of rates with equal marks, so that these rates find the same slots again.
void sort_equals(const RateList& rates, RateSlots* slots) {
    for (std::uint32_t i = 0; i < rates.size; i++) {
        for (std::uint32_t j = i + 1; j < rates.size; j++) {
            if (rate_slot_mark(rates.rates[i]) == rate_slot_mark(rates.rates[j]) &&
                slots->to[i] > slots->to[j]) {
                std::swap(slots->to[i], slots->to[j]);
                std::swap(slots->from[i], slots->from[j]);
            }
        }
    }
}

}  // namespace

std::uint8_t rate_slot_mark(const Rate& rate) {
    return static_cast<std::uint8_t>(1 + rate.period / kSecond % kRateSlotMarks);
}

RateSlots find_rate_slots(const RateList& rates, const StateLayout& layout, std::uint64_t marks) {
    RateSlots slots = {};
    unsigned written = 0;
    for (std::uint32_t i = 0; i < rates.size; i++) {
        const std::uint8_t own = rate_slot_mark(rates.rates[i]);
        const std::uint8_t slot =
            first_slot(layout, marks, written, [=](std::uint8_t mark) { return mark == own; });
        slots.to[i] = slots.from[i] = slot;
        written |= bit_of(slot);
    }
    unsigned read = written;
    for (std::uint32_t i = 0; i < rates.size; i++) {
        if (slots.to[i] != kNowhere) {
            continue;
        }
        const std::uint8_t left = first_slot(layout, marks, read, is_used);
        const std::uint8_t free = first_slot(layout, marks, written, is_free);
        if (free != kNowhere) {
            slots.to[i] = free;
            slots.from[i] = left != kNowhere ? left : free;
        } else {
            slots.to[i] = left != kNowhere ? left : first_slot(layout, marks, written, is_used);
            slots.from[i] = slots.to[i];
        }
        written |= bit_of(slots.to[i]);
        read |= bit_of(slots.from[i]) | bit_of(slots.to[i]);
    }
    sort_equals(rates, &slots);
    return slots;
}

std::uint64_t mark_rate_slots(const RateList& rates, const RateSlots& slots, std::uint64_t marks) {
    for (std::uint32_t i = 0; i < rates.size; i++) {
        const unsigned shift = slots.to[i] * 8U;
        marks = (marks & ~(std::uint64_t{0xff} << shift)) |
                (std::uint64_t{rate_slot_mark(rates.rates[i])} << shift);
    }
    return marks;
}

}  // namespace rate_limit
