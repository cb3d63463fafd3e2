// Changes of unsent counts, and the search for marked slots.
#include "memory/unsent_counts.h"

#include <algorithm>
#include <cstring>

namespace rate_limit {
namespace {

constexpr std::uint32_t kWordsPerRate = 2;

}  // namespace

std::uint32_t unsent_rates(const StateLayout& layout) {
    if (!layout.varied) {
        return 0;
    }
    return has_state<StateKind::kLog>(layout.algorithm) ? kMaxRates : layout.rates;
}

std::size_t count_size(const StateLayout& layout) {
    return sizeof(UnsentCount) + unsent_rates(layout) * kWordsPerRate * sizeof(std::uint64_t);
}

RateList UnsentCount::rates() const {
    RateList list = {};
    list.size = rates_.load(std::memory_order_acquire);
    const auto* words = const_cast<UnsentCount*>(this)->rate_words();
    for (std::uint32_t i = 0; i < list.size; i++) {
        const std::uint64_t count = load(words[i * kWordsPerRate]);
        const auto seconds = static_cast<Micros>(load(words[i * kWordsPerRate + 1]));
        list.rates[i] = {count, seconds * kSecond};
    }
    return list;
}

void UnsentCount::set_excess(std::uint64_t excess, std::uint32_t rested_at) {
    constexpr std::uint64_t kMost = 0xffff;
    excess_ = static_cast<std::uint16_t>(std::min(excess, kMost));
    rested_at_ = rested_at;
}

void UnsentCount::clear() {
    added_.store(load(sent_), std::memory_order_release);
    arrived_.store(load(sent_), std::memory_order_release);
    excess_ = 0;
    name_size_.store(0, std::memory_order_release);
    rates_.store(0, std::memory_order_release);
}

void UnsentCount::begin(std::string_view name, Micros now) {
    if (name_size_.load(std::memory_order_relaxed) != 0 || name.size() > kLongestName) {
        return;
    }
    since_ = now - 1;
    std::copy(name.begin(), name.end(), name_);
    name_size_.store(static_cast<std::uint8_t>(name.size()), std::memory_order_release);
}

// A process that dies here leaves a mixture of old and new rates of the client.
void UnsentCount::enter_rates(const RateList& rates, std::uint32_t room) {
    std::atomic<std::uint64_t>* words = rate_words();
    const std::uint32_t size = std::min(rates.size, room);
    for (std::uint32_t i = 0; i < size; i++) {
        const Rate& rate = rates.rates[i];
        const std::uint64_t numbers[kWordsPerRate] = {rate.count,
                                                      static_cast<std::uint64_t>(rate.period / kSecond)};
        for (std::uint32_t j = 0; j < kWordsPerRate; j++) {
            if (load(words[i * kWordsPerRate + j]) != numbers[j]) {
                words[i * kWordsPerRate + j].store(numbers[j], std::memory_order_release);
            }
        }
    }
    if (rates_.load(std::memory_order_relaxed) != size) {
        rates_.store(static_cast<std::uint8_t>(size), std::memory_order_release);
    }
}

// A stopped process whose lock was taken over may still write, so each change is atomic.
void UnsentCount::add(std::uint64_t amount) {
    const std::uint64_t room = kMaxCount - std::min(unsent(), kMaxCount);
    added_.fetch_add(std::min(amount, room), std::memory_order_release);
}

std::uint64_t UnsentCount::take_back(std::uint64_t amount) {
    const std::uint64_t taken = std::min(amount, unsent());
    added_.fetch_sub(taken, std::memory_order_release);
    return taken;
}

void UnsentCount::send(std::uint64_t amount, std::uint64_t sender, std::uint64_t sequence, Micros now) {
    sender_ = sender;
    sequence_ = sequence;
    since_ = now;
    added_.fetch_sub(unsent() - amount, std::memory_order_release);
    sent_.store(load(added_), std::memory_order_release);
}

void UnsentCount::arrive() { arrived_.store(load(sent_), std::memory_order_release); }

std::uint64_t UnsentCount::take_unsent() {
    const std::uint64_t sent = load(sent_);
    return added_.exchange(sent, std::memory_order_release) - sent;
}

void UnsentCount::continue_from(const UnsentCount& other, std::uint64_t unsent) {
    begin(other.name(), other.since_ + 1);
    sender_ = other.sender_;
    sequence_ = other.sequence_;
    excess_ = other.excess_;
    rested_at_ = other.rested_at_;
    const std::uint64_t sent = load(arrived_) + other.sending();
    added_.store(sent + unsent, std::memory_order_release);
    sent_.store(sent, std::memory_order_release);
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
