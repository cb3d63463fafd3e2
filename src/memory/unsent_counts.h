// Unsent counts: requests of each client that were admitted and not yet sent to Redis.
//
//     | UnsentCounts | a bit for each slot | unsent counts for each slot, of count_size(layout) bytes |
//
// The bit of a slot, its mark, is set while its count is not 0, so that slots with counts are found fast. A
// count requires the lock of its slot; everything else requires no lock. A process may die at any moment, so
// each important change is a single write.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "algorithms/state_layout.h"
#include "core/client_name.h"
#include "core/time.h"
#include "memory/leader.h"

namespace rate_limit {

// The unsent count of one client. Without meaning in a slot without a client.
class alignas(16) UnsentCount {
  public:
    std::uint64_t unsent() const { return distance(load(sent_), load(added_)); }
    std::uint64_t sending() const { return distance(load(arrived_), load(sent_)); }
    bool any() const { return load(added_) != load(arrived_); }
    std::uint64_t total() const { return unsent() + sending(); }

    // The call that has the requests in `sending`: its sender and sequence number.
    std::uint64_t sender() const { return sender_; }
    std::uint64_t sequence() const { return sequence_; }
    bool is_in(std::uint64_t sender, std::uint64_t sequence) const {
        return sending() != 0 && sender_ == sender && sequence_ == sequence;
    }

    // The name of the client; empty if it was never entered.
    std::string_view name() const { return {name_, name_size_.load(std::memory_order_acquire)}; }

    // If rates differ between clients: the last rates of the client; none if they were never entered.
    RateList rates() const;

    // The largest excess over a limit that was counted already, and the time, in seconds, after which a new
    // excess counts from 0.
    std::uint32_t excess() const { return excess_; }
    std::uint32_t rested_at() const { return rested_at_; }
    void set_excess(std::uint64_t excess, std::uint32_t rested_at);

    // Whether a charge of this time, by this machine's clock, is in `unsent`. Otherwise it was sent.
    bool has_unsent(Micros charged_at) const { return charged_at > since_; }

    // Forgets everything.
    void clear();

    // Begins the count of a client at a time, by this machine's clock, unless there is a name. Sets the name,
    // unless it is longer than kLongestName.
    void begin(std::string_view name, Micros now);

    // Sets the first `room` rates of the client.
    void enter_rates(const RateList& rates, std::uint32_t room);

    // Adds to what is unsent; saturates at kMaxCount.
    void add(std::uint64_t amount);

    // Subtracts `amount` from what is unsent, at most to 0. Returns how much was subtracted.
    std::uint64_t take_back(std::uint64_t amount);

    // Moves `amount` of the unsent requests in flight, and drops the others. `now` is by this machine's
    // clock. Requires that nothing is in flight.
    void send(std::uint64_t amount, std::uint64_t sender, std::uint64_t sequence, Micros now);

    // Sets what is in flight to 0.
    void arrive();

    // Sets what is unsent to 0; returns its value before.
    std::uint64_t take_unsent();

    // Drops what is unsent. `now` is by this machine's clock.
    void drop_unsent(Micros now) {
        take_unsent();
        since_ = now;
    }

    // Copies the call, the name and what is in flight of `other`, and sets what is unsent to `unsent`.
    void continue_from(const UnsentCount& other, std::uint64_t unsent);

  private:
    friend class UnsentCounts;

    static std::uint64_t load(const std::atomic<std::uint64_t>& word) {
        return word.load(std::memory_order_relaxed);
    }
    // A stopped process whose lock was taken over may still subtract, so `to` may be before `from`.
    static std::uint64_t distance(std::uint64_t from, std::uint64_t to) {
        return to - from < std::uint64_t{1} << 63 ? to - from : 0;
    }
    std::atomic<std::uint64_t>* rate_words() {
        return reinterpret_cast<std::atomic<std::uint64_t>*>(this + 1);
    }

    // The sums of all requests that were added, sent and confirmed. Each change is a single write to a sum.
    std::atomic<std::uint64_t> added_;
    std::atomic<std::uint64_t> sent_;
    std::atomic<std::uint64_t> arrived_;
    std::uint64_t sender_;
    std::uint64_t sequence_;
    Micros since_;  // charges up to this time are not in what is unsent
    std::atomic<std::uint8_t> name_size_;
    std::atomic<std::uint8_t> rates_;
    char name_[kLongestName];
    std::uint16_t excess_;  // saturates
    std::uint32_t rested_at_;
    // If rates differ between clients, two words for each rate follow: its count, and its period in seconds.
};

// The number of rates in each unsent count.
std::uint32_t unsent_rates(const StateLayout& layout);

std::size_t count_size(const StateLayout& layout);

// All unsent counts of a table.
class alignas(64) UnsentCounts {
  public:
    static std::size_t size(const StateLayout& layout, std::uint64_t slots);

    // Created in memory that is all zero and aligned to 64 bytes. `sender` is unique among all tables.
    UnsentCounts(const StateLayout& layout, std::uint64_t slots, std::uint64_t sender);

    UnsentCount* at(std::uint64_t slot) {
        return reinterpret_cast<UnsentCount*>(reinterpret_cast<unsigned char*>(this) + counts_at_ +
                                              slot * count_size_);
    }

    // Prefetch the amounts of a slot, and the rest of its name, of which most are short.
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

    // The marks of `count` slots, a divisor of 64, from `slot` on; without the slots of the next word of
    // marks.
    std::uint64_t marks_of(std::uint64_t slot, unsigned count) {
        const std::uint64_t bits = words()[slot / 64].load(std::memory_order_relaxed) >> (slot % 64);
        return count < 64 ? bits & ((std::uint64_t{1} << count) - 1) : bits;
    }

    // The first marked slot from `slot` on; the number of slots if there is none.
    std::uint64_t next_marked(std::uint64_t slot);

    // The sender and sequence numbers of the calls of this table.
    std::uint64_t sender() const { return sender_; }
    std::uint64_t next_sequence() { return sequence_.fetch_add(1, std::memory_order_relaxed) + 1; }

    void add_overshoot(std::uint64_t amount) { overshoot_.fetch_add(amount, std::memory_order_relaxed); }
    std::uint64_t overshoot() const { return overshoot_.load(std::memory_order_relaxed); }

    // Unsent requests of evicted clients.
    void add_lost(std::uint64_t amount) {
        if (amount != 0) {
            lost_.fetch_add(amount, std::memory_order_relaxed);
        }
    }
    std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

    // Elects the process that sends.
    Leader& leader() { return leader_; }

    // How far the clock of Redis is ahead of the clock of this machine.
    Micros ahead() const { return ahead_.load(std::memory_order_relaxed); }
    void set_ahead(Micros ahead) { ahead_.store(ahead, std::memory_order_relaxed); }

    // When the fallback last decided a request, by Process::clock; 0 if never.
    Micros alone_at() const { return alone_at_.load(std::memory_order_relaxed); }
    void set_alone_at(Micros now) { alone_at_.store(now, std::memory_order_relaxed); }

  private:
    std::atomic<std::uint64_t>* words() { return reinterpret_cast<std::atomic<std::uint64_t>*>(this + 1); }

    // Bytes before the first count, which is aligned to a cache line.
    static std::size_t header_size(std::uint64_t slots) {
        return sizeof(UnsentCounts) + (slots + 511) / 512 * alignof(UnsentCounts);
    }

    std::uint64_t slots_;
    std::uint64_t count_size_;
    std::uint64_t counts_at_;  // bytes from `this`
    std::uint64_t sender_;
    std::atomic<std::uint64_t> sequence_;  // the last one used
    std::atomic<std::uint64_t> overshoot_;
    std::atomic<std::uint64_t> lost_;
    std::atomic<Micros> ahead_;
    std::atomic<Micros> alone_at_;
    Leader leader_;
};

}  // namespace rate_limit
