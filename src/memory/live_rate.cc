// Writes a changed rate so that readers see all of it or nothing.
#include "memory/live_rate.h"

namespace rate_limit {
namespace {

constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
constexpr std::uint64_t kNoRates = 0xff;  // instead of the number of rates: no live rate

std::uint64_t mix(std::uint64_t sum, std::uint64_t word) {
    sum = (sum ^ word) * kOdd;
    return sum ^ (sum >> 29);
}

}  // namespace

std::uint64_t LiveRate::sum_of(std::uint64_t version, const std::uint64_t* words) {
    std::uint64_t sum = mix(kOdd, version);
    for (unsigned i = 0; i < kWords - 1; i++) {
        sum = mix(sum, words[i]);
    }
    return sum;
}

LiveRate::Kind LiveRate::read(std::uint64_t* version, RateList* rates) const {
    *version = version_.load(std::memory_order_acquire);
    if (*version == 0) {
        return Kind::kNone;
    }
    const Version& kept = versions_[*version % kVersions];
    std::uint64_t words[kWords];
    for (unsigned i = 0; i < kWords; i++) {
        words[i] = kept.words[i].load(std::memory_order_relaxed);
    }
    if (words[kWords - 1] != sum_of(*version, words) || (words[0] > kMaxRates && words[0] != kNoRates)) {
        return Kind::kTorn;
    }
    if (words[0] == kNoRates) {
        return Kind::kNone;
    }
    rates->size = static_cast<std::uint32_t>(words[0]);
    for (std::uint32_t i = 0; i < rates->size; i++) {
        rates->rates[i] = {words[i * 2 + 1], static_cast<Micros>(words[i * 2 + 2])};
    }
    return Kind::kRates;
}

void LiveRate::write(const RateList* rates) {
    const std::uint64_t version = begun_.fetch_add(1, std::memory_order_relaxed) + 1;
    std::uint64_t words[kWords] = {rates != nullptr ? rates->size : kNoRates};
    for (std::uint32_t i = 0; rates != nullptr && i < rates->size; i++) {
        words[i * 2 + 1] = rates->rates[i].count;
        words[i * 2 + 2] = static_cast<std::uint64_t>(rates->rates[i].period);
    }
    words[kWords - 1] = sum_of(version, words);
    Version& kept = versions_[version % kVersions];
    for (unsigned i = 0; i < kWords; i++) {
        kept.words[i].store(words[i], std::memory_order_relaxed);
    }
    // Of two concurrent writers, the one with the higher number wins.
    std::uint64_t before = version_.load(std::memory_order_relaxed);
    while (before < version && !version_.compare_exchange_weak(before, version, std::memory_order_release)) {
    }
}

bool same_rates(const RateList& a, const RateList& b) {
    if (a.size != b.size) {
        return false;
    }
    for (std::uint32_t i = 0; i < a.size; i++) {
        if (a.rates[i].count != b.rates[i].count || a.rates[i].period != b.rates[i].period) {
            return false;
        }
    }
    return true;
}

}  // namespace rate_limit
