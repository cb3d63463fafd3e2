// What clients were admitted that Redis has not been told of yet: unsent counts beside each slot of a table.
//
//     | UnsentCounts | a bit for each slot | unsent counts for each slot, of count_size(layout) bytes |
//
// A bit is set while its slot owes something, so that finding those who do costs little, and nothing if
// nobody does. Counts are read and written by whoever holds the slot's lock; the rest needs none. A
// process may die at any moment: each change that matters is one write.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/client_name.h"
#include "core/state_layout.h"
#include "memory/leader.h"

namespace rate_limit {

// Belongs to the slot's client; means nothing in a slot without one.
class UnsentCount {
  public:
    std::uint32_t unsent() const { return static_cast<std::uint32_t>(amounts()); }
    std::uint32_t sending() const { return static_cast<std::uint32_t>(amounts() >> 32); }
    bool any() const { return amounts() != 0; }
    std::uint64_t total() const { return std::uint64_t{unsent()} + sending(); }

    // The call that `sending` is in: who has numbered it, and how.
    std::uint64_t sender() const { return sender_; }
    std::uint64_t sequence() const { return sequence_; }
    bool is_in(std::uint64_t sender, std::uint64_t sequence) const {
        return sending() != 0 && sender_ == sender && sequence_ == sequence;
    }

    // Empty if it was never entered.
    std::string_view name() const { return {name_, name_size_.load(std::memory_order_acquire)}; }

    // Those that the client last had, where rates differ between clients; none if they were never entered.
    RateList rates() const;

    // The largest excess over a limit that was counted already, and the moment, in seconds, at which the
    // client has rested so that the next one counts again.
    std::uint32_t excess() const { return excess_; }
    std::uint32_t rested_at() const { return rested_at_; }
    void set_excess(std::uint64_t excess, std::uint32_t rested_at);

    // Forgets everything.
    void clear();

    // Enters the client's name, unless there is one or it is longer than kLongestName.
    void enter_name(std::string_view name);

    // Enters the client's rates, the first `room` of them.
    void enter_rates(const RateList& rates, std::uint32_t room);

    // Adds to what is unsent, which stays at the most that it can be.
    void add(std::uint32_t amount);

    // Takes `amount` off what is unsent, or all of it if that is less.
    void take_back(std::uint32_t amount);

    // `amount` is on its way, and nothing is unsent. Only while nothing is on its way.
    void send(std::uint32_t amount, std::uint64_t sender, std::uint64_t sequence);

    // Nothing is on its way any more.
    void arrive();

    // Empties what is unsent; returns what it was.
    std::uint32_t take_unsent();

    // Continues another's: its amounts, its call and its name.
    void continue_from(const UnsentCount& other, std::uint32_t unsent);

  private:
    friend class UnsentCounts;

    std::uint64_t amounts() const { return amounts_.load(std::memory_order_relaxed); }
    std::atomic<std::uint64_t>* rate_words() {
        return reinterpret_cast<std::atomic<std::uint64_t>*>(this + 1);
    }

    std::atomic<std::uint64_t> amounts_;  // unsent in the low half, sending in the high one
    std::uint64_t sender_;
    std::uint64_t sequence_;
    std::atomic<std::uint8_t> name_size_;
    std::atomic<std::uint8_t> rates_;
    char name_[kLongestName];
    std::uint16_t excess_;  // at most what it can be
    std::uint32_t rested_at_;
    // If rates differ between clients, words follow: a rate's count in the low half, its period in seconds
    // in the high one.
};

// Room for rates in unsent counts of that layout.
std::uint32_t unsent_rates(const StateLayout& layout);

std::size_t count_size(const StateLayout& layout);

// All unsent counts of a table.
class alignas(64) UnsentCounts {
  public:
    static std::size_t size(const StateLayout& layout, std::uint64_t slots);

    // Made in memory that is all zero, aligned to 64 bytes. `sender` is of no other table.
    UnsentCounts(const StateLayout& layout, std::uint64_t slots, std::uint64_t sender);

    UnsentCount* at(std::uint64_t slot) {
        return reinterpret_cast<UnsentCount*>(reinterpret_cast<unsigned char*>(this) + counts_at_ +
                                              slot * count_size_);
    }

    // Ask for the memory of a slot's amounts, and of its name, of which most are short.
    void prefetch(std::uint64_t slot) { __builtin_prefetch(at(slot), 1); }
    void prefetch_name(std::uint64_t slot) { __builtin_prefetch(at(slot)->name_ + 16); }

    void mark(std::uint64_t slot) {
        if (!is_marked(slot)) {
            words()[slot / 64].fetch_or(std::uint64_t{1} << (slot % 64), std::memory_order_relaxed);
        }
    }
    void unmark(std::uint64_t slot) {
        if (is_marked(slot)) {
            words()[slot / 64].fetch_and(~(std::uint64_t{1} << (slot % 64)), std::memory_order_relaxed);
        }
    }
    bool is_marked(std::uint64_t slot) { return (marks_of(slot, 1) & 1) != 0; }

    // The marks of `count` slots, 64 at most and a divisor of that, of which `slot` is the first.
    std::uint64_t marks_of(std::uint64_t slot, unsigned count) {
        const std::uint64_t bits = words()[slot / 64].load(std::memory_order_relaxed) >> (slot % 64);
        return count < 64 ? bits & ((std::uint64_t{1} << count) - 1) : bits;
    }

    // The first marked slot from `slot` on; that after the last if there is none.
    std::uint64_t next_marked(std::uint64_t slot);

    // Who numbers the calls that this table sends.
    std::uint64_t sender() const { return sender_; }
    std::uint64_t next_sequence() { return sequence_.fetch_add(1, std::memory_order_relaxed) + 1; }

    void add_overshoot(std::uint32_t amount) { overshoot_.fetch_add(amount, std::memory_order_relaxed); }
    std::uint64_t overshoot() const { return overshoot_.load(std::memory_order_relaxed); }

    // Unsent requests of clients that had to give way.
    void add_lost(std::uint32_t amount) {
        if (amount != 0) {
            lost_.fetch_add(amount, std::memory_order_relaxed);
        }
    }
    std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

    // Which process may send.
    Leader& leader() { return leader_; }

    // How far Redis' clock is ahead of this machine's.
    Micros ahead() const { return ahead_.load(std::memory_order_relaxed); }
    void set_ahead(Micros ahead) { ahead_.store(ahead, std::memory_order_relaxed); }

    // When a request was last decided without Redis, which should have been asked, by the process's clock; 0
    // if none was.
    Micros alone_at() const { return alone_at_.load(std::memory_order_relaxed); }
    void set_alone_at(Micros now) { alone_at_.store(now, std::memory_order_relaxed); }

  private:
    std::atomic<std::uint64_t>* words() { return reinterpret_cast<std::atomic<std::uint64_t>*>(this + 1); }

    // Bytes before the first count, which begins a line of the cache as this does.
    static std::size_t header_size(std::uint64_t slots) {
        return sizeof(UnsentCounts) + (slots + 511) / 512 * alignof(UnsentCounts);
    }

    std::uint64_t slots_;
    std::uint64_t count_size_;
    std::uint64_t counts_at_;  // bytes from here
    std::uint64_t sender_;
    std::atomic<std::uint64_t> sequence_;  // the last that was used
    std::atomic<std::uint64_t> overshoot_;
    std::atomic<std::uint64_t> lost_;
    std::atomic<Micros> ahead_;
    std::atomic<Micros> alone_at_;
    Leader leader_;
};

}  // namespace rate_limit
