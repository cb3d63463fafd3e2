// A hash table with open addressing.
#include "algorithms/rate_memo.h"

namespace rate_limit {
namespace {

constexpr std::size_t kTries = 8;  // entries that may hold a value

std::size_t hash(std::string_view text) {
    std::uint32_t sum = 2166136261U;
    for (const char c : text) {
        sum = (sum ^ static_cast<unsigned char>(c)) * 16777619U;
    }
    return sum;
}

}  // namespace

// The entry of a value, else a free entry, else one that the number of parsed values selects.
RateMemo::Entry* RateMemo::entry_for(std::string_view text) {
    const std::size_t first = hash(text);
    Entry* free = nullptr;
    for (std::size_t i = 0; i < kTries; i++) {
        Entry& entry = entries_[(first + i) % kEntries];
        if (std::string_view(entry.text, entry.size) == text) {
            return &entry;
        }
        if (entry.size == 0 && free == nullptr) {
            free = &entry;
        }
    }
    return free != nullptr ? free : &entries_[(first + parsed_ % kTries) % kEntries];
}

const RateList* RateMemo::read(std::string_view text, const Policy& policy, const StateLayout& layout) {
    if (text.empty() || text.size() > kLongest) {
        return nullptr;
    }
    Entry* entry = entry_for(text);
    if (std::string_view(entry->text, entry->size) != text) {
        parsed_++;
        entry->size = static_cast<std::uint32_t>(text.copy(entry->text, kLongest));
        Policy changed = policy;
        entry->valid = parse_rates(text, &changed.rates) == nullptr && holds(layout, changed);
        entry->rates = changed.rates;
    }
    return entry->valid ? &entry->rates : nullptr;
}

}  // namespace rate_limit
