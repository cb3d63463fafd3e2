// The table's locking, its search and the choice of who gives way.
#include "memory/table.h"

#include <algorithm>
#include <new>

namespace rate_limit {
namespace {

constexpr unsigned kAttempts = 64;

// A process holds no more than one slot of a table, and asks for none while it does: a lock that bears its id
// was left by a dead process that had the same.
bool is_left(std::uint32_t owner, std::uint32_t self) { return owner == self; }

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Waiting for a lock: a holder needs well under a microsecond, unless it was put to sleep or is dead.
class Patience {
  public:
    explicit Patience(const Process& process) : process_(process) {}

    // Waits a moment for `owner`; false if it will never let go.
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
        500'000;  // who holds a slot for longer is stopped, or another with a dead one's id

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
      has_accounts_(unsent_counts),
      set_size_(set_size(layout)),
      counts_at_(accounts_offset(sets, set_size_)),
      evictions_(0),
      reminded_(0),
      noted_(0),
      offset_(0) {
    if (unsent_counts) {
        new (&this->unsent_counts()) UnsentCounts(layout, slots(), siphash(key, "sender"));
    }
}

std::uint64_t Table::accounts_offset(std::uint64_t sets, std::uint64_t set_size) {
    return round_up(round_up(sizeof(Table)) + sets * set_size);
}

std::size_t Table::size_of(const StateLayout& layout, std::uint64_t sets, bool unsent_counts) {
    return unsent_counts ? accounts_offset(sets, set_size(layout)) + UnsentCounts::size(layout, sets * kWays)
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

// Locks the position if it still is the client's.
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
        // What a dead holder left of a client that it was about to enter is not a state: forget it.
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

// The client that has used the smaller part of its quota gives way first. Of two that have used the same, the
// one that owes nothing does: Redis has its counts, while counts that are owed would be lost. What is owed
// must not decide before that: every new client owes, and a flood of them would wash out all others.
bool Table::Choice::gives_way_before(const Choice& other) const {
    const std::uint64_t used = used_part_of(weight);
    const std::uint64_t used_by_other = used_part_of(other.weight);
    if (used != used_by_other) {
        return used < used_by_other;
    }
    return owes != other.owes ? other.owes : weight < other.weight;
}

// Where a new client goes: a free slot of its first set, if that has some to spare, or of the emptier one, or
// else the slot whose loss forgets least.
bool Table::choose(std::uint64_t hash, const Policy& policy, Micros now, Choice* choice) const {
    const std::uint64_t sets[2] = {first_set(hash), second_set(hash)};
    *choice = {};
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
        // The first set is where a client is looked for first.
        if (most_free > kWays / 4) {
            return true;
        }
    }
    if (most_free != 0) {
        return true;
    }
    // States are read without their locks: a torn one may misplace a choice, nothing more.
    for (const std::uint64_t index : sets) {
        Set* set = set_at(index);
        const std::uint64_t owing = has_accounts_ ? unsent_counts().marks_of(index * kWays, kWays) : 0;
        for (unsigned way = 0; way < kWays; way++) {
            if (set->locks[way].load(std::memory_order_relaxed) != 0) {
                continue;
            }
            const Position position = {set, way, index};
            const std::uint64_t victim = set->hashes[way].load(std::memory_order_acquire);
            const std::uint64_t weight = weight_of(policy, layout_, state_of(position), now);
            const Choice candidate = {position, victim, weight, weight != 0 && (owing >> way & 1) != 0};
            if (choice->position.set == nullptr || candidate.gives_way_before(*choice)) {
                *choice = candidate;
            }
            if (weight == 0) {
                return true;
            }
        }
    }
    return choice->position.set != nullptr;
}

// Takes the position for a new client; false if somebody else was faster, or has entered the same client
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
    if (has_accounts_) {
        unsent_of(*slot).clear();
        unmark(*slot);
    }
    slot->fresh = true;
    return true;
}

// Two processes may enter one client at once, each in a position of its own. Each shows its position first
// and looks for others then, so at least one sees the other. Whoever has finished stays; of two that have
// not, the lower position does.
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
    // Somebody else has entered the client since it was looked for.
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
    // The slot may have been used between the choice and the lock: then choose again.
    const bool same = slot->hash->load(std::memory_order_seq_cst) == choice.victim;
    if (!same || (choice.victim != 0 && weight_of(policy, layout_, slot->state, now) > choice.weight)) {
        keep(*slot, process);
        return false;
    }
    if (choice.victim != 0 && choice.weight != 0) {
        evictions_.fetch_add(1, std::memory_order_relaxed);
        if (has_accounts_) {
            unsent_counts().add_lost(unsent_of(*slot).unsent());
        }
    }
    return claim(choice, hash, process, slot);
}

// Frees the slots of a set whose holders have died. What was being entered then is forgotten.
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
    if (has_accounts_) {
        unsent_of(slot).clear();
        unmark(slot);
    }
    drop(slot, process);
    return true;
}

void Table::add_unsent(const Slot& slot, std::uint32_t amount, std::string_view name, const RateList& rates) {
    UnsentCounts& all = unsent_counts();
    UnsentCount& counts = *all.at(slot.number);
    counts.enter_name(name);
    if (layout_.varied) {
        counts.enter_rates(rates, unsent_rates(layout_));
    }
    // What is owed without a mark would never be found.
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

// A client that was dropped may leave its slot marked.
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

void Table::import_account(Table& other, const Position& from, const RateList& rates, const Slot& slot,
                           const Process& process) {
    Slot before;
    if (!other.lock(from, slot.hash->load(std::memory_order_relaxed), process, &before)) {
        return;
    }
    UnsentCount& from_account = other.unsent_of(before);
    UnsentCount& counts = unsent_of(slot);
    if (layout_.varied) {
        counts.enter_rates(other.layout_.varied ? from_account.rates() : rates, unsent_rates(layout_));
    }
    counts.continue_from(from_account, from_account.take_unsent());
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
    // While clients come in, those that are there weigh by the rates that they were used with, if the new are
    // not known.
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
                if (has_accounts_ && other.has_accounts_) {
                    import_account(other, {set, way, i}, rates, slot, process);
                }
                keep(slot, process);
            }
        }
    }
}

// A clock that is never set back tells how far the other was, even if nobody asked meanwhile.
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

// Clears the states that had ended at the moment `ended`, but would matter at `now`. If this process was
// stopped after it had read the clock, `ended` is in the past, and what had ended by then has ended.
void Table::clear_ended(const Policy& policy, Micros ended, Micros now, const Process& process) {
    for (std::uint64_t number = 0; number < slots(); number++) {
        const Position position = position_at(number);
        const std::uint64_t hash = position.set->hashes[position.way].load(std::memory_order_acquire);
        const std::uint64_t* state = state_of(position);
        Slot slot;
        // States are read without their locks, and those to be cleared once more.
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

bool Table::remind(Micros now, Micros every) {
    Micros last = reminded_.load(std::memory_order_relaxed);
    const bool due = last == 0 || now - last >= every || last - now >= every;
    return due && reminded_.compare_exchange_strong(last, now, std::memory_order_relaxed);
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
