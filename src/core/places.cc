// Finds the state that belongs to a rate by the marks of the periods.
#include "core/places.h"

#include <utility>

namespace rate_limit {
namespace {

constexpr std::uint8_t kNowhere = 0xff;

// The first place that is not among `taken` and whose mark fits.
template <class Fits>
std::uint8_t first_place(const Shape& shape, std::uint64_t marks, unsigned taken, Fits fits) {
    for (std::uint32_t place = 0; place < shape.rates; place++) {
        if ((taken >> place & 1) == 0 && fits(static_cast<std::uint8_t>(marks >> (place * 8)))) {
            return static_cast<std::uint8_t>(place);
        }
    }
    return kNowhere;
}

unsigned bit_of(std::uint8_t place) { return place < kMaxRates ? 1U << place : 0; }

bool is_free(std::uint8_t mark) { return mark == 0; }
bool is_left(std::uint8_t mark) { return mark != 0; }

// Rates whose marks are equal have their places in order, so that they find them again once those are marked.
void sort_equals(const RateList& rates, Places* places) {
    for (std::uint32_t i = 0; i < rates.size; i++) {
        for (std::uint32_t j = i + 1; j < rates.size; j++) {
            if (place_mark(rates.rates[i]) == place_mark(rates.rates[j]) && places->to[i] > places->to[j]) {
                std::swap(places->to[i], places->to[j]);
                std::swap(places->from[i], places->from[j]);
            }
        }
    }
}

}  // namespace

std::uint8_t place_mark(const Rate& rate) {
    constexpr Micros kMarks = 251;  // a prime; fits a byte
    return static_cast<std::uint8_t>(1 + rate.period / kSecond % kMarks);
}

Places find_places(const RateList& rates, const Shape& shape, std::uint64_t marks) {
    Places places = {};
    unsigned written = 0;
    for (std::uint32_t i = 0; i < rates.size; i++) {
        const std::uint8_t own = place_mark(rates.rates[i]);
        const std::uint8_t place =
            first_place(shape, marks, written, [=](std::uint8_t mark) { return mark == own; });
        places.to[i] = places.from[i] = place;
        written |= bit_of(place);
    }
    unsigned read = written;
    for (std::uint32_t i = 0; i < rates.size; i++) {
        if (places.to[i] != kNowhere) {
            continue;
        }
        const std::uint8_t left = first_place(shape, marks, read, is_left);
        const std::uint8_t free = first_place(shape, marks, written, is_free);
        if (free != kNowhere) {
            places.to[i] = free;
            places.from[i] = left != kNowhere ? left : free;
        } else {
            places.to[i] = left != kNowhere ? left : first_place(shape, marks, written, is_left);
            places.from[i] = places.to[i];
        }
        written |= bit_of(places.to[i]);
        read |= bit_of(places.from[i]) | bit_of(places.to[i]);
    }
    sort_equals(rates, &places);
    return places;
}

std::uint64_t mark_places(const RateList& rates, const Places& places, std::uint64_t marks) {
    for (std::uint32_t i = 0; i < rates.size; i++) {
        const unsigned shift = places.to[i] * 8U;
        marks =
            (marks & ~(std::uint64_t{0xff} << shift)) | (std::uint64_t{place_mark(rates.rates[i])} << shift);
    }
    return marks;
}

}  // namespace rate_limit
