// Changes of unsent counts, and the search for marked slots.
#include "memory/unsent_counts.h"

#include <algorithm>
#include <cstring>

namespace rate_limit {
namespace {

constexpr unsigned kSendingShift = 32;
constexpr unsigned kPeriodShift = 32;
constexpr std::uint64_t kLowHalf = 0xffffffff;

std::uint64_t pack(const Rate& rate) {
    return rate.count | static_cast<std::uint64_t>(rate.period / kSecond) << kPeriodShift;
}

Rate unpack(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word), static_cast<Micros>(word >> kPeriodShift) * kSecond};
}

}  // namespace

std::uint32_t unsent_rates(const StateLayout& layout) {
    if (!layout.varied) {
        return 0;
    }
    return has_state<StateKind::kLog>(layout.algorithm) ? kMaxRates : layout.rates;
}

std::size_t count_size(const StateLayout& layout) {
    return sizeof(UnsentCount) + unsent_rates(layout) * sizeof(std::uint64_t);
}

RateList UnsentCount::rates() const {
    RateList list = {};
    list.size = rates_.load(std::memory_order_acquire);
    const auto* words = const_cast<UnsentCount*>(this)->rate_words();
    for (std::uint32_t i = 0; i < list.size; i++) {
        list.rates[i] = unpack(words[i].load(std::memory_order_relaxed));
    }
    return list;
}

void UnsentCount::set_excess(std::uint64_t excess, std::uint32_t rested_at) {
    constexpr std::uint64_t kMost = 0xffff;
    excess_ = static_cast<std::uint16_t>(std::min(excess, kMost));
    rested_at_ = rested_at;
}

void UnsentCount::clear() {
    amounts_.store(0, std::memory_order_release);
    excess_ = 0;
    name_size_.store(0, std::memory_order_release);
    rates_.store(0, std::memory_order_release);
}

void UnsentCount::enter_name(std::string_view name) {
    if (name_size_.load(std::memory_order_relaxed) != 0 || name.size() > kLongestName) {
        return;
    }
    std::copy(name.begin(), name.end(), name_);
    name_size_.store(static_cast<std::uint8_t>(name.size()), std::memory_order_release);
}

// A process that dies here leaves a mixture of old and new rates of the client.
void UnsentCount::enter_rates(const RateList& rates, std::uint32_t room) {
    std::atomic<std::uint64_t>* words = rate_words();
    const std::uint32_t size = std::min(rates.size, room);
    for (std::uint32_t i = 0; i < size; i++) {
        const std::uint64_t word = pack(rates.rates[i]);
        if (words[i].load(std::memory_order_relaxed) != word) {
            words[i].store(word, std::memory_order_release);
        }
    }
    if (rates_.load(std::memory_order_relaxed) != size) {
        rates_.store(static_cast<std::uint8_t>(size), std::memory_order_release);
    }
}

// A stopped process whose lock was taken over may still write, so each change is atomic.
void UnsentCount::add(std::uint64_t amount) {
    std::uint64_t before = amounts();
    std::uint64_t after = 0;
    do {
        const std::uint64_t unsent = std::min((before & kLowHalf) + amount, kLowHalf);
        after = (before & ~kLowHalf) | unsent;
    } while (!amounts_.compare_exchange_weak(before, after, std::memory_order_release));
}

std::uint64_t UnsentCount::take_back(std::uint64_t amount) {
    std::uint64_t before = amounts();
    std::uint64_t after = 0;
    do {
        after = before - std::min<std::uint64_t>(before & kLowHalf, amount);
    } while (!amounts_.compare_exchange_weak(before, after, std::memory_order_release));
    return before - after;
}

void UnsentCount::send(std::uint32_t amount, std::uint64_t sender, std::uint64_t sequence) {
    sender_ = sender;
    sequence_ = sequence;
    amounts_.store(std::uint64_t{amount} << kSendingShift, std::memory_order_release);
}

void UnsentCount::arrive() { amounts_.fetch_and(kLowHalf, std::memory_order_release); }

std::uint32_t UnsentCount::take_unsent() {
    return static_cast<std::uint32_t>(amounts_.fetch_and(~kLowHalf, std::memory_order_release));
}

void UnsentCount::continue_from(const UnsentCount& other, std::uint32_t unsent) {
    enter_name(other.name());
    sender_ = other.sender_;
    sequence_ = other.sequence_;
    excess_ = other.excess_;
    rested_at_ = other.rested_at_;
    amounts_.store(unsent | std::uint64_t{other.sending()} << kSendingShift, std::memory_order_release);
}

std::size_t UnsentCounts::size(const StateLayout& layout, std::uint64_t slots) {
    return header_size(slots) + slots * count_size(layout);
}

UnsentCounts::UnsentCounts(const StateLayout& layout, std::uint64_t slots, std::uint64_t sender)
    : slots_(slots),
      count_size_(rate_limit::count_size(layout)),
      counts_at_(header_size(slots)),
      sender_(sender),
      sequence_(0),
      overshoot_(0),
      lost_(0),
      ahead_(0),
      alone_at_(0) {}

std::uint64_t UnsentCounts::next_marked(std::uint64_t slot) {
    while (slot < slots_) {
        const std::uint64_t bits = marks_of(slot, 64);
        if (bits != 0) {
            return slot + static_cast<std::uint64_t>(__builtin_ctzll(bits));
        }
        slot = (slot / 64 + 1) * 64;
    }
    return slots_;
}

}  // namespace rate_limit
