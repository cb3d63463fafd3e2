// Locks, search, insertion and eviction.
#include "memory/table.h"

#include <algorithm>
#include <new>

namespace rate_limit {
namespace {

constexpr unsigned kAttempts = 64;

// A process holds at most one slot of a table and takes no other slot meanwhile, so a lock with its own id
// was left by a dead process that had the same id.
bool is_left(std::uint32_t owner, std::uint32_t self) { return owner == self; }

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Waits for a lock. A holder needs less than a microsecond, unless it is suspended or dead.
class Patience {
  public:
    explicit Patience(const Process& process) : process_(process) {}

    // Waits for `owner` for a moment; false if the lock can be taken over.
    bool wait(std::uint32_t owner) {
        if (is_left(owner, process_.self)) {
            return false;
        }
        if (owner != owner_) {
            owner_ = owner;
            rounds_ = 0;
        }
        rounds_++;
        if (rounds_ < kSpins) {
            pause();
            return true;
        }
        if (rounds_ == kSpins) {
            since_ = process_.clock();
        }
        if (rounds_ % kRoundsPerLook == 0 &&
            (!process_.alive(owner) || process_.clock() - since_ > kLongest)) {
            return false;
        }
        process_.yield();
        return true;
    }

  private:
    static constexpr unsigned kSpins = 128;
    static constexpr unsigned kRoundsPerLook = 4;
    static constexpr Micros kLongest =
        500'000;  // a holder for longer is stopped, or is another process with the id of a dead one

    const Process& process_;
    std::uint32_t owner_ = 0;
    unsigned rounds_ = 0;
    Micros since_ = 0;
};

}  // namespace

Table::Table(const StateLayout& layout, const HashKey& key, std::uint64_t sets, bool unsent_counts)
    : layout_(layout),
      key_(key),
      sets_(sets),
      words_(static_cast<std::uint32_t>(words_of(layout))),
      has_unsent_counts_(unsent_counts),
      set_size_(set_size(layout)),
      counts_at_(unsent_counts_offset(sets, set_size_)),
      evictions_(0),
      noted_(0),
      offset_(0) {
    if (unsent_counts) {
        new (&this->unsent_counts()) UnsentCounts(layout, slots(), siphash(key, "sender"));
    }
}

std::uint64_t Table::unsent_counts_offset(std::uint64_t sets, std::uint64_t set_size) {
    return round_up(round_up(sizeof(Table)) + sets * set_size);
}

std::size_t Table::size_of(const StateLayout& layout, std::uint64_t sets, bool unsent_counts) {
    return unsent_counts
               ? unsent_counts_offset(sets, set_size(layout)) + UnsentCounts::size(layout, sets * kWays)
               : round_up(sizeof(Table)) + sets * set_size(layout);
}

std::size_t Table::least_size(const StateLayout& layout, bool unsent_counts) {
    return size_of(layout, 1, unsent_counts);
}

Table* Table::create(void* memory, std::size_t size, const StateLayout& layout, const HashKey& key,
                     bool unsent_counts) {
    static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "slots are shared between processes");
    static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "locks are shared between processes");
    const std::size_t least = least_size(layout, unsent_counts);
    if (size < least) {
        return nullptr;
    }
    std::uint64_t sets =
        2 + (size - least) / (set_size(layout) + (unsent_counts ? kWays * count_size(layout) : 0));
    while (size_of(layout, sets, unsent_counts) > size) {
        sets--;
    }
    return new (memory) Table(layout, key, sets, unsent_counts);
}

void Table::prefetch(std::uint64_t number) const {
    const Position position = position_at(number);
    __builtin_prefetch(&position.set->hashes[position.way]);
    __builtin_prefetch(&position.set->locks[position.way], 1);
    __builtin_prefetch(state_of(position), 1);
    unsent_counts().prefetch(number);
    unsent_counts().prefetch_name(number);
}

// Locks the slot at a position if the client still has it.
bool Table::lock(const Position& position, std::uint64_t hash, const Process& process, Slot* slot) {
    std::atomic<std::uint32_t>& lock = position.set->locks[position.way];
    Patience patience(process);
    for (;;) {
        std::uint32_t seen = lock.load(std::memory_order_relaxed);
        if (seen != 0 && position.set->hashes[position.way].load(std::memory_order_seq_cst) != hash) {
            return false;
        }
        if (seen != 0 && patience.wait(owner_of(seen))) {
            continue;
        }
        const std::uint32_t mine = process.self | (seen & kFresh);
        if (!lock.compare_exchange_strong(seen, mine, std::memory_order_seq_cst)) {
            continue;
        }
        *slot = slot_at(position);
        // The holder died before it wrote the state: remove the client.
        if ((mine & kFresh) != 0) {
            drop(*slot, process);
            return false;
        }
        if (slot->hash->load(std::memory_order_seq_cst) == hash) {
            return true;
        }
        keep(*slot, process);
        return false;
    }
}

// The client that has used the smaller part of its quota is evicted first. Of two that have used the same
// part, it is the one without an unsent count, which would be lost. The unsent count is not compared first:
// every new client has one, and a flood of new clients would evict all others.
bool Table::Choice::is_evicted_before(const Choice& other) const {
    const std::uint64_t used = used_part_of(weight);
    const std::uint64_t used_by_other = used_part_of(other.weight);
    if (used != used_by_other) {
        return used < used_by_other;
    }
    return has_unsent != other.has_unsent ? other.has_unsent : weight < other.weight;
}

// Chooses a free slot: of the first set if it has many free slots, else of the set with more. False if
// neither set has one.
bool Table::choose_free(const std::uint64_t (&sets)[2], Choice* choice) const {
    unsigned most_free = 0;
    for (const std::uint64_t index : sets) {
        const Set* set = set_at(index);
        unsigned free = 0;
        unsigned first = 0;
        for (unsigned way = kWays; way-- > 0;) {
            if (set->hashes[way].load(std::memory_order_relaxed) == 0 &&
                set->locks[way].load(std::memory_order_relaxed) == 0) {
                free++;
                first = way;
            }
        }
        if (free > most_free) {
            most_free = free;
            choice->position = {set_at(index), first, index};
        }
        // A client in its first set is found faster.
        if (most_free > kWays / 4) {
            return true;
        }
    }
    return most_free != 0;
}

// Chooses the slot of the client to evict. False if all slots of both sets are locked.
bool Table::choose_victim(const std::uint64_t (&sets)[2], const Policy& policy, Micros now,
                          Choice* choice) const {
    // States are read without locks: a torn state only makes the choice worse.
    for (const std::uint64_t index : sets) {
        Set* set = set_at(index);
        const std::uint64_t unsent_marks =
            has_unsent_counts_ ? unsent_counts().marks_of(index * kWays, kWays) : 0;
        for (unsigned way = 0; way < kWays; way++) {
            if (set->locks[way].load(std::memory_order_relaxed) != 0) {
                continue;
            }
            const Position position = {set, way, index};
            const std::uint64_t victim = set->hashes[way].load(std::memory_order_acquire);
            const std::uint64_t weight = weight_of(policy, layout_, state_of(position), now);
            const Choice next = {position, victim, weight, weight != 0 && (unsent_marks >> way & 1) != 0};
            if (choice->position.set == nullptr || next.is_evicted_before(*choice)) {
                *choice = next;
            }
            if (weight == 0) {
                return true;
            }
        }
    }
    return choice->position.set != nullptr;
}

// Chooses the slot for a new client.
bool Table::choose(std::uint64_t hash, const Policy& policy, Micros now, Choice* choice) const {
    const std::uint64_t sets[2] = {first_set(hash), second_set(hash)};
    *choice = {};
    return choose_free(sets, choice) || choose_victim(sets, policy, now, choice);
}

// Takes the slot for a new client; false if another process was faster, or has inserted the same client
// elsewhere.
bool Table::claim(const Choice& choice, std::uint64_t hash, const Process& process, Slot* slot) {
    std::uint64_t victim = choice.victim;
    if (!slot->hash->compare_exchange_strong(victim, hash, std::memory_order_seq_cst)) {
        return false;
    }
    if (!alone(choice.position, hash, process)) {
        drop(*slot, process);
        return false;
    }
    std::fill_n(slot->state, words_, 0);
    if (has_unsent_counts_) {
        unsent_of(*slot).clear();
        unmark(*slot);
    }
    slot->fresh = true;
    return true;
}

// Two processes may insert the same client at the same time, at different positions. Each writes the hash
// first and then searches for others, so at least one sees the other. A finished insertion wins; of two
// unfinished ones, that at the lower position wins.
bool Table::alone(const Position& position, std::uint64_t hash, const Process& process) {
    Patience patience(process);
    for (;;) {
        Position other;
        if (!seek(first_set(hash), hash, &position, &other) &&
            !seek(second_set(hash), hash, &position, &other)) {
            return true;
        }
        std::atomic<std::uint32_t>& lock = other.set->locks[other.way];
        std::uint32_t seen = lock.load(std::memory_order_seq_cst);
        if ((seen & kFresh) == 0 || other < position) {
            return false;
        }
        if (!patience.wait(owner_of(seen)) &&
            lock.compare_exchange_strong(seen, process.self | kFresh, std::memory_order_seq_cst)) {
            drop(slot_at(other), process);
        }
    }
}

bool Table::insert(std::uint64_t hash, const Policy& policy, Micros now, const Process& process, Slot* slot) {
    Choice choice;
    if (!choose(hash, policy, now, &choice)) {
        reclaim(first_set(hash), process);
        reclaim(second_set(hash), process);
        return false;
    }
    // Another process has inserted the client since the search.
    if (choice.victim == hash) {
        return false;
    }
    const Position& position = choice.position;
    std::uint32_t unlocked = 0;
    if (!position.set->locks[position.way].compare_exchange_strong(unlocked, process.self | kFresh,
                                                                   std::memory_order_seq_cst)) {
        return false;
    }
    *slot = slot_at(position);
    // If the slot was used between the choice and the lock, choose again.
    const bool same = slot->hash->load(std::memory_order_seq_cst) == choice.victim;
    if (!same || (choice.victim != 0 && weight_of(policy, layout_, slot->state, now) > choice.weight)) {
        keep(*slot, process);
        return false;
    }
    if (choice.victim != 0 && choice.weight != 0) {
        evictions_.fetch_add(1, std::memory_order_relaxed);
        if (has_unsent_counts_) {
            unsent_counts().add_lost(unsent_of(*slot).unsent());
        }
    }
    return claim(choice, hash, process, slot);
}

// Unlocks the slots of a set whose holders have died. Removes clients that were being inserted.
void Table::reclaim(std::uint64_t index, const Process& process) const {
    Set* set = set_at(index);
    for (unsigned way = 0; way < kWays; way++) {
        std::uint32_t seen = set->locks[way].load(std::memory_order_relaxed);
        if (seen == 0 || (!is_left(owner_of(seen), process.self) && process.alive(owner_of(seen))) ||
            !set->locks[way].compare_exchange_strong(seen, process.self | (seen & kFresh),
                                                     std::memory_order_seq_cst)) {
            continue;
        }
        const Slot slot = slot_at({set, way, index});
        if ((seen & kFresh) != 0) {
            drop(slot, process);
        } else {
            keep(slot, process);
        }
    }
}

Slot Table::find(std::uint64_t hash, const Process& process) {
    Slot slot;
    Position position;
    for (unsigned i = 0; i < kAttempts; i++) {
        if (!seek(first_set(hash), hash, nullptr, &position) &&
            !seek(second_set(hash), hash, nullptr, &position)) {
            break;
        }
        if (lock(position, hash, process, &slot)) {
            return slot;
        }
    }
    return {};
}

Slot Table::find(std::uint64_t hash, std::uint64_t number, const Process& process) {
    const Position position = position_at(number);
    Slot slot;
    if (position.set->hashes[position.way].load(std::memory_order_seq_cst) == hash &&
        lock(position, hash, process, &slot)) {
        return slot;
    }
    return find(hash, process);
}

Slot Table::acquire_later(std::uint64_t hash, const Policy& policy, Micros now, const Process& process) {
    Slot slot;
    for (unsigned i = 0; i < kAttempts; i++) {
        slot = find(hash, process);
        if (slot.state != nullptr || insert(hash, policy, now, process, &slot)) {
            return slot;
        }
        slot = {};
        pause();
    }
    return slot;
}

void Table::drop(const Slot& slot, const Process& process) {
    if (owner_of(slot.lock->load(std::memory_order_relaxed)) == process.self) {
        slot.hash->store(0, std::memory_order_seq_cst);
        keep(slot, process);
    }
}

bool Table::forget(std::uint64_t hash, const Process& process) {
    const Slot slot = find(hash, process);
    if (slot.state == nullptr) {
        return false;
    }
    if (has_unsent_counts_) {
        unsent_of(slot).clear();
        unmark(slot);
    }
    drop(slot, process);
    return true;
}

void Table::add_unsent(const Slot& slot, std::uint64_t amount, std::string_view name, const RateList& rates,
                       Micros now) {
    UnsentCounts& all = unsent_counts();
    UnsentCount& counts = *all.at(slot.number);
    counts.begin(name, now);
    if (layout_.varied) {
        counts.enter_rates(rates, unsent_rates(layout_));
    }
    // Mark first: a count without a mark would never be found.
    all.mark(slot.number);
    counts.add(amount);
}

void Table::unmark(const Slot& slot) const {
    UnsentCounts& all = unsent_counts();
    if (!all.at(slot.number)->any()) {
        all.unmark(slot.number);
    }
}

Slot Table::next_unsent(std::uint64_t* from, const Process& process) {
    for (;;) {
        const std::uint64_t number = unsent_counts().next_marked(*from);
        if (number >= slots()) {
            *from = slots();
            return {};
        }
        *from = number + 1;
        const Position position = position_at(number);
        const std::uint64_t hash = position.set->hashes[position.way].load(std::memory_order_seq_cst);
        Slot slot;
        if (hash != 0 && lock(position, hash, process, &slot)) {
            return slot;
        }
        unmark_free(position, process);
    }
}

// Clears the mark of a slot whose client was dropped.
void Table::unmark_free(const Position& position, const Process& process) {
    std::uint32_t unlocked = 0;
    if (!position.set->locks[position.way].compare_exchange_strong(unlocked, process.self | kFresh,
                                                                   std::memory_order_seq_cst)) {
        return;
    }
    const Slot slot = slot_at(position);
    if (slot.hash->load(std::memory_order_seq_cst) == 0) {
        unsent_counts().unmark(slot.number);
    }
    keep(slot, process);
}

void Table::import_unsent_count(Table& other, const Position& from, const RateList& rates, const Slot& slot,
                                const Process& process) {
    Slot before;
    if (!other.lock(from, slot.hash->load(std::memory_order_relaxed), process, &before)) {
        return;
    }
    UnsentCount& old_count = other.unsent_of(before);
    UnsentCount& counts = unsent_of(slot);
    if (layout_.varied) {
        counts.enter_rates(other.layout_.varied ? old_count.rates() : rates, unsent_rates(layout_));
    }
    counts.continue_from(old_count, old_count.take_unsent());
    if (counts.any()) {
        unsent_counts().mark(slot.number);
    }
    keep(before, process);
}

void Table::import(Table& other, const RateList& rates, const Policy& policy, Micros now,
                   const Process& process) {
    key_ = other.key_;
    noted_.store(other.noted_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    offset_.store(other.offset_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    // If the new rates are unknown, clients are weighed by the old rates during the import.
    Policy weighing = policy;
    if (weighing.rates.size == 0) {
        weighing.rates = rates;
        weighing.rates.size = std::min(rates.size, layout_.rates);
    }
    for (std::uint64_t i = 0; i < other.sets_; i++) {
        Set* set = other.set_at(i);
        for (unsigned way = 0; way < kWays; way++) {
            const std::uint64_t hash = set->hashes[way].load(std::memory_order_acquire);
            if (hash == 0 || (set->locks[way].load(std::memory_order_acquire) & kFresh) != 0) {
                continue;
            }
            const Slot slot = acquire(hash, weighing, now, process);
            if (slot.state != nullptr) {
                std::fill_n(slot.state, words_, 0);
                convert(other.layout_, rates, other.state_of({set, way, i}), layout_, policy.rates,
                        slot.state);
                if (has_unsent_counts_ && other.has_unsent_counts_) {
                    import_unsent_count(other, {set, way, i}, rates, slot, process);
                }
                keep(slot, process);
            }
        }
    }
}

// Process::clock is never set back, so the change of the offset is how far the other clock was set back.
void Table::note_time_later(Micros now, const Policy& policy, const Process& process) {
    if (!process.clock_is_shared) {
        return;
    }
    const Micros offset = now - process.clock();
    Micros noted = noted_.load(std::memory_order_relaxed);
    if (!noted_.compare_exchange_strong(noted, now, std::memory_order_relaxed)) {
        return;
    }
    const Micros back = offset_.exchange(offset, std::memory_order_relaxed) - offset;
    if (noted != 0 && back > kClockSlack) {
        clear_ended(policy, now + back, now, process);
    }
}

// Clears the states that had ended at the moment `ended` but would count at `now`. If this process was
// stopped after it had read the clock, `ended` is in the past, which clears fewer states.
void Table::clear_ended(const Policy& policy, Micros ended, Micros now, const Process& process) {
    for (std::uint64_t number = 0; number < slots(); number++) {
        const Position position = position_at(number);
        const std::uint64_t hash = position.set->hashes[position.way].load(std::memory_order_acquire);
        const std::uint64_t* state = state_of(position);
        Slot slot;
        // States are read without locks, then once more with the lock.
        if (hash == 0 || weight_of(policy, layout_, state, ended) != 0 ||
            weight_of(policy, layout_, state, now) == 0 || !lock(position, hash, process, &slot)) {
            continue;
        }
        if (weight_of(policy, layout_, state, ended) == 0) {
            std::fill_n(slot.state, words_, 0);
        }
        keep(slot, process);
    }
}

std::uint64_t Table::clients() const {
    constexpr std::uint64_t kMostSets = 4096;
    const std::uint64_t step = (sets_ + kMostSets - 1) / kMostSets;
    std::uint64_t used = 0;
    std::uint64_t looked = 0;
    for (std::uint64_t i = 0; i < sets_; i += step) {
        const Set* set = set_at(i);
        looked++;
        used += static_cast<std::uint64_t>(
            std::count_if(set->hashes, set->hashes + kWays, [](const std::atomic<std::uint64_t>& hash) {
                return hash.load(std::memory_order_relaxed) != 0;
            }));
    }
    return looked != 0 ? static_cast<std::uint64_t>(multiply(used, sets_) / looked) : 0;
}

}  // namespace rate_limit
