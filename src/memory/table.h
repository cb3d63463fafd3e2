// The clients of one zone, in memory that several processes share.
//
// A client is identified by the keyed 64-bit hash of its name and may have any slot of two sets of 16 slots:
//
//     | 16 hashes, 8 bytes each | 16 locks, 4 bytes each | 16 states of words_of(layout) words |
//
// Each slot has a lock, the id of the process that holds it. A lock whose holder has died is taken over.
// Nothing is allocated: if both sets are full, the client with the lowest weight (weight_of) is evicted. A
// table may have unsent counts, which follow the sets: see unsent_counts.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "algorithms/check.h"
#include "core/arithmetic.h"
#include "memory/process.h"
#include "memory/siphash.h"
#include "memory/unsent_counts.h"

namespace rate_limit {

// The slot of a client, locked by this process, which may hold one slot of a table at a time. Unlock it by
// one of Table::keep and Table::drop.
struct Slot {
    std::uint64_t* state = nullptr;  // null: no slot
    std::atomic<std::uint64_t>* hash = nullptr;
    std::atomic<std::uint32_t>* lock = nullptr;
    std::uint64_t number = 0;  // among all slots of the table
    bool fresh = false;        // the client was unknown; its state and unsent count are all zero
};

class Table {
  public:
    // The smallest size that create() accepts.
    static std::size_t least_size(const StateLayout& layout, bool unsent_counts = false);

    // Creates an empty table in `size` bytes at `memory`, all zero and aligned to 64 bytes; null if `size` is
    // too small. The table lives in that memory and is never destroyed. `key` must be random.
    static Table* create(void* memory, std::size_t size, const StateLayout& layout, const HashKey& key,
                         bool unsent_counts = false);

    // Copies the clients of another table, for which can_convert() must hold and which other processes may
    // use meanwhile. No other process may use this table yet. `rates` are the rates that the other table was
    // used with, none if unknown; `policy` is for this table. Copies the hash key too. If both tables have
    // unsent counts, what is unsent moves here; what is in flight is then in both tables, and is charged
    // once.
    void import(Table& other, const RateList& rates, const Policy& policy, Micros now,
                const Process& process);

    [[gnu::always_inline]] std::uint64_t hash(std::string_view client) const {
        return nonzero(siphash(key_, client));
    }

    // Remembers the time. If the clock was set back, clears each state that had ended before, because such a
    // state would count again; this takes about 10 ms for 100,000 clients. Call it before acquire(), while
    // this process holds no slot of the table. Does nothing without Process::clock_is_shared.
    [[gnu::always_inline]] void note_time(Micros now, const Policy& policy, const Process& process) {
        const Micros passed = now - noted_.load(std::memory_order_relaxed);
        if (passed < -kClockSlack || passed > kNoteEvery) {
            note_time_later(now, policy, process);
        }
    }

    // Locks the slot of a client; gives an unknown client a slot. Waits only for other requests of the same
    // client. The result has no state if every slot that the client may have is locked.
    [[gnu::always_inline]] Slot acquire(std::uint64_t hash, const Policy& policy, Micros now,
                                        const Process& process) {
        Slot slot;
        return lock_at_once(hash, process, &slot) ? slot : acquire_later(hash, policy, now, process);
    }

    // Locks the slot of a client, if it has one.
    Slot find(std::uint64_t hash, const Process& process);

    // The same for a client that recently had the slot `number`, and most likely still has.
    Slot find(std::uint64_t hash, std::uint64_t number, const Process& process);

    // Unlock a slot: keep() keeps the client, drop() removes it. If another process took over the lock
    // meanwhile, because this one was stopped for too long, they do nothing.
    static void keep(const Slot& slot, const Process& process) {
        std::uint32_t held = process.self;
        if (!slot.lock->compare_exchange_strong(held, 0, std::memory_order_release,
                                                std::memory_order_relaxed) &&
            held == (process.self | kFresh)) {
            slot.lock->compare_exchange_strong(held, 0, std::memory_order_release, std::memory_order_relaxed);
        }
    }
    static void drop(const Slot& slot, const Process& process);

    // Removes a client and its unsent count; false if the client is unknown.
    bool forget(std::uint64_t hash, const Process& process);

    // Adds `amount`, charged at `now` by this machine's clock, to the unsent count of a locked slot. The
    // table must have unsent counts. `name` is the short_name() of the client; `rates` are used only if rates
    // differ between clients.
    void add_unsent(const Slot& slot, std::uint64_t amount, std::string_view name, const RateList& rates,
                    Micros now);

    // Locks the first slot from number `*from` on that may have an unsent count; the result has no state if
    // there is none. Sets `*from` to the number after that slot, or slots(). The table must have unsent
    // counts.
    Slot next_unsent(std::uint64_t* from, const Process& process);

    bool has_unsent_counts() const { return has_unsent_counts_; }

    // Only for a table with unsent counts. The count of one slot requires the lock of that slot.
    UnsentCounts& unsent_counts() const {
        auto* base = reinterpret_cast<unsigned char*>(const_cast<Table*>(this));
        return *reinterpret_cast<UnsentCounts*>(base + counts_at_);
    }
    UnsentCount& unsent_of(const Slot& slot) const { return *unsent_counts().at(slot.number); }

    // Prefetches a slot and its unsent count into the cache. The table must have unsent counts.
    void prefetch(std::uint64_t number) const;

    // Clears the mark of a locked slot if its unsent count is 0.
    void unmark(const Slot& slot) const;

    const StateLayout& layout() const { return layout_; }
    std::uint64_t slots() const { return sets_ * kWays; }

    // Clients that were evicted before they had their full quota again, since the table was created. Their
    // unsent counts are lost: see lost().
    std::uint64_t evictions() const { return evictions_.load(std::memory_order_relaxed); }

    // Unsent requests of evicted clients, which are never sent to Redis; 0 without unsent counts.
    std::uint64_t lost() const { return has_unsent_counts_ ? unsent_counts().lost() : 0; }

    // Requests that were admitted beyond a limit, as Redis reports; 0 without unsent counts.
    std::uint64_t overshoot() const { return has_unsent_counts_ ? unsent_counts().overshoot() : 0; }

    // Number of clients. For a table of more than 65,536 slots an estimate from at most that many slots,
    // because to read all slots of a large table takes a second.
    std::uint64_t clients() const;

  private:
    static constexpr unsigned kWays = 16;

    // In a lock: the slot has the hash of a client whose state is not written yet.
    static constexpr std::uint32_t kFresh = 1U << 31;

    static constexpr Micros kNoteEvery = kSecond / 10;

    static constexpr std::size_t kCacheLine = 64;

    static constexpr std::size_t round_up(std::size_t size) {
        return (size + kCacheLine - 1) / kCacheLine * kCacheLine;
    }

    static std::uint32_t owner_of(std::uint32_t lock) { return lock & ~kFresh; }

    struct Set {
        std::atomic<std::uint64_t> hashes[kWays];
        std::atomic<std::uint32_t> locks[kWays];
        // kWays states follow.
    };

    // The position of a slot. The order of positions decides between two processes that insert the same
    // client.
    struct Position {
        Set* set = nullptr;
        unsigned way = 0;
        std::uint64_t index = 0;  // of the set
        bool operator<(const Position& other) const {
            return set != other.set ? set < other.set : way < other.way;
        }
    };

    // A position for a new client, the hash of the client to evict (0 for none), and the weight of its state.
    struct Choice {
        Position position;
        std::uint64_t victim = 0;
        std::uint64_t weight = 0;
        bool has_unsent = false;  // and its weight is not 0

        bool is_evicted_before(const Choice& other) const;
    };

    Table(const StateLayout& layout, const HashKey& key, std::uint64_t sets, bool unsent_counts);

    static std::uint64_t nonzero(std::uint64_t hash) { return hash != 0 ? hash : 1; }
    static std::size_t set_size(const StateLayout& layout) {
        return sizeof(Set) + kWays * words_of(layout) * 8;
    }

    static std::size_t size_of(const StateLayout& layout, std::uint64_t sets, bool unsent_counts);
    static std::uint64_t unsent_counts_offset(std::uint64_t sets, std::uint64_t set_size);

    Set* set_at(std::uint64_t index) const {
        auto* base = reinterpret_cast<unsigned char*>(const_cast<Table*>(this)) + round_up(sizeof(Table));
        return reinterpret_cast<Set*>(base + index * set_size_);
    }
    // The indices of the two sets of a client.
    std::uint64_t first_set(std::uint64_t hash) const {
        return static_cast<std::uint64_t>(multiply(hash, sets_) >> 64);
    }
    std::uint64_t second_set(std::uint64_t hash) const {
        // A multiplication by an odd constant spreads the low bits, which the first set does not depend on.
        return static_cast<std::uint64_t>(multiply(hash * 0x9e3779b97f4a7c15, sets_) >> 64);
    }
    Position position_at(std::uint64_t number) const {
        return {set_at(number / kWays), static_cast<unsigned>(number % kWays), number / kWays};
    }
    std::uint64_t* state_of(const Position& position) const {
        return reinterpret_cast<std::uint64_t*>(position.set + 1) + position.way * words_;
    }
    Slot slot_at(const Position& position) const {
        return {state_of(position), &position.set->hashes[position.way], &position.set->locks[position.way],
                position.index * kWays + position.way, false};
    }

    bool seek(std::uint64_t index, std::uint64_t hash, const Position* except, Position* position) const {
        Set* set = set_at(index);
        for (unsigned way = 0; way < kWays; way++) {
            if (set->hashes[way].load(std::memory_order_seq_cst) == hash &&
                !(except != nullptr && except->set == set && except->way == way)) {
                *position = {set, way, index};
                return true;
            }
        }
        return false;
    }
    bool lock(const Position& position, std::uint64_t hash, const Process& process, Slot* slot);
    Slot acquire_later(std::uint64_t hash, const Policy& policy, Micros now, const Process& process);

    // Locks the slot of a known client if it is not locked: the most common case.
    [[gnu::always_inline]] bool lock_at_once(std::uint64_t hash, const Process& process, Slot* slot) const {
        Position position;
        if (!seek(first_set(hash), hash, nullptr, &position) &&
            !seek(second_set(hash), hash, nullptr, &position)) {
            return false;
        }
        if (has_unsent_counts_) {
            unsent_counts().prefetch(position.index * kWays + position.way);
        }
        std::atomic<std::uint32_t>& lock = position.set->locks[position.way];
        std::uint32_t unlocked = 0;
        if (!lock.compare_exchange_strong(unlocked, process.self, std::memory_order_seq_cst)) {
            return false;
        }
        *slot = slot_at(position);
        if (slot->hash->load(std::memory_order_seq_cst) == hash) {
            return true;
        }
        keep(*slot, process);
        return false;
    }

    bool insert(std::uint64_t hash, const Policy& policy, Micros now, const Process& process, Slot* slot);
    bool claim(const Choice& choice, std::uint64_t hash, const Process& process, Slot* slot);
    bool alone(const Position& position, std::uint64_t hash, const Process& process);
    void reclaim(std::uint64_t index, const Process& process) const;
    bool choose(std::uint64_t hash, const Policy& policy, Micros now, Choice* choice) const;
    bool choose_free(const std::uint64_t (&sets)[2], Choice* choice) const;
    bool choose_victim(const std::uint64_t (&sets)[2], const Policy& policy, Micros now,
                       Choice* choice) const;
    void note_time_later(Micros now, const Policy& policy, const Process& process);
    void clear_ended(const Policy& policy, Micros ended, Micros now, const Process& process);
    void unmark_free(const Position& position, const Process& process);
    void import_unsent_count(Table& other, const Position& from, const RateList& rates, const Slot& slot,
                             const Process& process);

    StateLayout layout_;
    HashKey key_;
    std::uint64_t sets_;
    std::uint32_t words_;  // of a state
    bool has_unsent_counts_;
    std::uint64_t set_size_;   // bytes
    std::uint64_t counts_at_;  // bytes from `this`, if the table has unsent counts
    std::atomic<std::uint64_t> evictions_;
    std::atomic<Micros> noted_;   // the last time of note_time(), to about kNoteEvery; 0 if never
    std::atomic<Micros> offset_;  // `now` minus Process::clock at that time
};

}  // namespace rate_limit
