// Finds the state that belongs to a rate by the marks of the periods.
#include "core/places.h"

#include <utility>

namespace rate_limit {
namespace {

constexpr std::uint8_t kNowhere = 0xff;

// Takes the first place that is not taken and whose mark fits.
template <class Fits>
std::uint8_t take_place(const Shape& shape, std::uint64_t marks, unsigned* taken, Fits fits) {
    for (std::uint32_t place = 0; place < shape.rates; place++) {
        if ((*taken >> place & 1) == 0 && fits(static_cast<std::uint8_t>(marks >> (place * 8)))) {
            *taken |= 1U << place;
            return static_cast<std::uint8_t>(place);
        }
    }
    return kNowhere;
}

// Rates whose marks are equal have their places in order, so that they find them again once those are marked.
void sort_equals(const RateList& rates, Places* places) {
    for (std::uint32_t i = 0; i < rates.size; i++) {
        for (std::uint32_t j = i + 1; j < rates.size; j++) {
            if (place_mark(rates.rates[i]) == place_mark(rates.rates[j]) &&
                places->of_rate[i] > places->of_rate[j]) {
                std::swap(places->of_rate[i], places->of_rate[j]);
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
    unsigned taken = 0;
    for (std::uint32_t i = 0; i < rates.size; i++) {
        const std::uint8_t own = place_mark(rates.rates[i]);
        places.of_rate[i] = take_place(shape, marks, &taken, [=](std::uint8_t mark) { return mark == own; });
    }
    for (std::uint32_t i = 0; i < rates.size; i++) {
        std::uint8_t& place = places.of_rate[i];
        if (place == kNowhere) {
            place = take_place(shape, marks, &taken, [](std::uint8_t mark) { return mark != 0; });
        }
        if (place == kNowhere) {
            place = take_place(shape, marks, &taken, [](std::uint8_t mark) { return mark == 0; });
        }
    }
    sort_equals(rates, &places);
    return places;
}

std::uint64_t mark_places(const RateList& rates, const Places& places, std::uint64_t marks) {
    for (std::uint32_t i = 0; i < rates.size; i++) {
        const unsigned shift = places.of_rate[i] * 8U;
        marks =
            (marks & ~(std::uint64_t{0xff} << shift)) | (std::uint64_t{place_mark(rates.rates[i])} << shift);
    }
    return marks;
}

}  // namespace rate_limit
