// The clients of one zone, in memory that several processes share.
//
// A client is known by the keyed 64-bit hash of its name and may live in any slot of two sets of 16. A set
// has its hashes together, then its locks, then its states:
//
//     | 16 hashes, 8 bytes each | 16 locks, 4 bytes each | 16 states of words_of(shape) words |
//
// A lock is the id of the process that holds it, so nobody waits for another client, and a lock whose holder
// has died is taken over. Nothing is ever allocated: when both sets are full, the slot gives way whose loss
// forgets least.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "store/host.h"
#include "store/siphash.h"

namespace rate_limit {

// A client's slot, locked by this process, which may hold one of a table at a time. Given back by exactly one
// of Table::keep and Table::drop.
struct Slot {
    std::uint64_t* state = nullptr;  // null: there is none
    std::atomic<std::uint64_t>* hash = nullptr;
    std::atomic<std::uint32_t>* lock = nullptr;
    bool fresh = false;  // the client was not known; its state is all zero
};

class Table {
  public:
    // The least memory that holds a table of this shape.
    static std::size_t least_size(const Shape& shape);

    // Makes an empty table in `size` bytes at `memory`, all zero and aligned to 64 bytes; null if that is too
    // small. The table lives in that memory and is never destroyed. `key` must be random.
    static Table* create(void* memory, std::size_t size, const Shape& shape, const HashKey& key);

    // Copies the clients of another table, whose shape must convert to this one's, while others may be using
    // it. Only for a table that nobody else uses yet. `rates` are those that the other was used with, none if
    // not known, and `policy` is for this one. Takes over the other's hash key.
    void import(const Table& other, const RateList& rates, const Policy& policy, Micros now,
                const Host& host);

    std::uint64_t hash(std::string_view client) const { return nonzero(siphash(key_, client)); }

    // Locks the slot of a client, made for it if it has none. Waits only for the same client's other
    // requests. The result has no state if every slot that the client may have is in use at this moment.
    Slot acquire(std::uint64_t hash, const Policy& policy, Micros now, const Host& host);

    // Locks the slot of a client, if it has one.
    Slot find(std::uint64_t hash, const Host& host);

    // Unlocks a slot whose state is to stay, or that holds nothing worth keeping.
    static void keep(const Slot& slot, const Host& host);
    static void drop(const Slot& slot, const Host& host);

    // True at most once in `every` among all processes: for what should be logged, but not with each request.
    bool remind(Micros now, Micros every);

    const Shape& shape() const { return shape_; }
    std::uint64_t slots() const { return sets_ * kWays; }

    // Clients that were forgotten before they were back at their full quota, since the table was made.
    std::uint64_t evictions() const { return evictions_.load(std::memory_order_relaxed); }

    // Slots in use, by looking at each.
    std::uint64_t clients() const;

  private:
    static constexpr unsigned kWays = 16;

    struct Set {
        std::atomic<std::uint64_t> hashes[kWays];
        std::atomic<std::uint32_t> locks[kWays];
        // kWays states follow.
    };

    // A place that a client may live in; the order of places decides between two processes that insert one
    // client.
    struct Place {
        Set* set = nullptr;
        unsigned way = 0;
        bool operator<(const Place& other) const {
            return set != other.set ? set < other.set : way < other.way;
        }
    };

    // A place for a new client, the hash of who has it (0 for nobody) and what would be forgotten with it.
    struct Choice {
        Place place;
        std::uint64_t victim = 0;
        std::uint64_t weight = 0;
    };

    Table(const Shape& shape, const HashKey& key, std::uint64_t sets);

    static std::uint64_t nonzero(std::uint64_t hash) { return hash != 0 ? hash : 1; }
    static std::size_t set_size(const Shape& shape) { return sizeof(Set) + kWays * words_of(shape) * 8; }

    Set* set_at(std::uint64_t index) const;
    Set* first_set(std::uint64_t hash) const;
    Set* second_set(std::uint64_t hash) const;
    std::uint64_t* state_of(const Place& place) const;
    Slot slot_at(const Place& place, bool fresh) const;

    static bool seek(Set* set, std::uint64_t hash, const Place* except, Place* place);
    bool lock(const Place& place, std::uint64_t hash, const Host& host, Slot* slot);
    bool insert(std::uint64_t hash, const Policy& policy, Micros now, const Host& host, Slot* slot);
    bool claim(const Choice& choice, std::uint64_t hash, const Host& host, Slot* slot);
    bool alone(const Place& place, std::uint64_t hash, const Host& host);
    void reclaim(Set* set, const Host& host) const;
    bool choose(std::uint64_t hash, const Policy& policy, Micros now, Choice* choice) const;

    Shape shape_;
    HashKey key_;
    std::uint64_t sets_;
    std::uint64_t words_;     // of a state
    std::uint64_t set_size_;  // bytes
    std::atomic<std::uint64_t> evictions_;
    std::atomic<Micros> reminded_;
};

}  // namespace rate_limit
