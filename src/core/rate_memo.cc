// Remembers values in the places that follow from their hash.
#include "core/rate_memo.h"

namespace rate_limit {
namespace {

constexpr std::size_t kTries = 8;  // places that a value may be in

std::size_t hash(std::string_view text) {
    std::uint32_t sum = 2166136261U;
    for (const char c : text) {
        sum = (sum ^ static_cast<unsigned char>(c)) * 16777619U;
    }
    return sum;
}

}  // namespace

// The place of a value, or else a free one, or else the one that the number of values parsed so far happens
// to name.
RateMemo::Place* RateMemo::place_for(std::string_view text) {
    const std::size_t first = hash(text);
    Place* free = nullptr;
    for (std::size_t i = 0; i < kTries; i++) {
        Place& place = places_[(first + i) % kPlaces];
        if (std::string_view(place.text, place.size) == text) {
            return &place;
        }
        if (place.size == 0 && free == nullptr) {
            free = &place;
        }
    }
    return free != nullptr ? free : &places_[(first + parsed_ % kTries) % kPlaces];
}

const RateList* RateMemo::read(std::string_view text, const Policy& policy, const Shape& shape) {
    if (text.empty() || text.size() > kLongest) {
        return nullptr;
    }
    Place* place = place_for(text);
    if (std::string_view(place->text, place->size) != text) {
        parsed_++;
        place->size = static_cast<std::uint32_t>(text.copy(place->text, kLongest));
        Policy candidate = policy;
        place->valid = parse_rates(text, &candidate.rates) == nullptr && holds(shape, candidate);
        place->rates = candidate.rates;
    }
    return place->valid ? &place->rates : nullptr;
}

}  // namespace rate_limit
