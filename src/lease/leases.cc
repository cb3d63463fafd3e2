// Finds and locks the entries of clients.
#include "lease/leases.h"

#include <algorithm>
#include <new>

#include "core/arithmetic.h"
#include "memory/policy_mark.h"

namespace rate_limit {
namespace {

constexpr std::size_t kHeader = 128;
constexpr Micros kGone = kSecond;  // an entry is free this long after its last use

// A pace: the tag of a client in the high 32 bits, a short span of time in 24 bits, and a number of requests.
// Two processes that write at the same time may lose a request.
constexpr unsigned kSpanBits = 14;      // 16 ms
constexpr std::uint64_t kHotAfter = 3;  // requests within a span: two or more in kLeaseHorizon
constexpr std::uint64_t kCountMask = 0xff;

std::uint64_t pace_head(std::uint64_t client, Micros now) {
    const std::uint64_t span = static_cast<std::uint64_t>(now) >> kSpanBits & 0xffffff;
    return (client & 0xffffffff00000000) | span << 8;
}

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

}  // namespace

std::size_t Leases::least_size() { return kHeader + sizeof(Set); }

Leases* Leases::create(void* memory, std::size_t size, const HashKey& key) {
    static_assert(sizeof(Leases) <= kHeader, "the sets follow the header");
    static_assert(offsetof(Set, entries) == 64, "tags and paces are one cache line");
    return size < least_size() ? nullptr : new (memory) Leases(key, (size - kHeader) / sizeof(Set));
}

Leases::Set* Leases::set_at(std::uint64_t index) const {
    return reinterpret_cast<Set*>(const_cast<char*>(reinterpret_cast<const char*>(this)) + kHeader) + index;
}

Leases::Set* Leases::set_of(std::uint64_t client) const {
    return set_at(static_cast<std::uint64_t>(multiply(client, sets_) >> 64));
}

// Locks an entry. False if a living process holds the lock for longer than usual.
bool Leases::lock(Entry* entry, const Process& process) {
    constexpr unsigned kSpins = 128;
    for (unsigned spins = 0;; spins++) {
        std::uint32_t holder = 0;
        if (entry->lock.compare_exchange_strong(holder, process.self, std::memory_order_acquire)) {
            return true;
        }
        // A process holds one lock at a time: a lock with its own id is that of a dead process with this id.
        const bool left = holder == process.self || (spins >= kSpins && !process.alive(holder));
        if (left && entry->lock.compare_exchange_strong(holder, process.self, std::memory_order_acquire)) {
            drop_units(entry);
            return true;
        }
        if (spins >= kSpins) {
            return false;
        }
        pause();
    }
}

void Leases::drop_units(Entry* entry) {
    for (Portion& portion : entry->portions) {
        portion = {};
    }
    entry->asked = 0;
    entry->dry = 0;
}

// The locked entry of a client; null if it has none.
Leases::Entry* Leases::find(std::uint64_t client, const Process& process) const {
    Set* set = set_of(client);
    for (unsigned way = 0; way < kWays; way++) {
        Entry* entry = &set->entries[way];
        if (set->tags[way].load(std::memory_order_relaxed) != tag_of(client) ||
            entry->client.load(std::memory_order_relaxed) != client || !lock(entry, process)) {
            continue;
        }
        if (entry->client.load(std::memory_order_relaxed) == client) {
            return entry;
        }
        unlock(entry);
    }
    return nullptr;
}

// Notes a request of a client without an entry. True if the client gets one.
bool Leases::is_hot(Set* set, std::uint64_t client, Micros now) {
    std::atomic<std::uint64_t>& pace = set->paces[(client & 0xffff) * kPaces >> 16];
    const std::uint64_t seen = pace.load(std::memory_order_relaxed);
    const std::uint64_t head = pace_head(client, now);
    const std::uint64_t count = (seen & ~kCountMask) == head ? (seen & kCountMask) + 1 : 1;
    pace.store(head | std::min(count, kCountMask), std::memory_order_relaxed);
    return count >= kHotAfter;
}

bool Leases::is_asking(const Entry& entry, Micros now) {
    return entry.asked != 0 && now - entry.asked_at < kAskFor;
}

// Whether an entry was not used for a time, and nothing can be added to it.
bool Leases::is_idle(const Entry& entry, Micros now, Micros since) {
    return now - entry.used_at >= since && !is_asking(entry, now);
}

// Gives a client an entry of the set, locked; null if all are in use.
Leases::Entry* Leases::claim(Set* set, const LeaseClient& client, Micros now, const Process& process) {
    for (unsigned way = 0; way < kWays; way++) {
        Entry* entry = &set->entries[way];
        if (set->tags[way].load(std::memory_order_relaxed) != 0 || !lock(entry, process)) {
            continue;
        }
        if (entry->client.load(std::memory_order_relaxed) != 0 &&
            set->tags[way].load(std::memory_order_relaxed) != 0) {
            unlock(entry);
            continue;
        }
        const std::uint32_t last_id = entry->last_id;
        entry->client.store(client.hash, std::memory_order_relaxed);
        restart(entry, client, now);
        entry->last_id = last_id;
        entry->tick = now;
        entry->demand = kHotAfter - 1;
        entry->pace = kHotAfter * static_cast<std::uint64_t>(kSecond) >> kSpanBits;
        entry->missed = 1;
        entry->ask_again = now;
        set->tags[way].store(tag_of(client.hash), std::memory_order_relaxed);
        return entry;
    }
    return nullptr;
}

void Leases::take(const LeaseClient& client, const LeaseSize& size, std::uint64_t cost, Micros now,
                  const Process& process, LeaseTake* take) {
    Entry* entry = find(client.hash, process);
    if (entry == nullptr) {
        Set* set = set_of(client.hash);
        entry = is_hot(set, client.hash, now) && most_leased(*client.policy, size) > 1
                    ? claim(set, client, now, process)
                    : nullptr;
        if (entry == nullptr) {
            return;
        }
    }
    if (entry->mark != policy_mark(*client.policy)) {
        take->rest = restart(entry, client, now);
    }
    note_demand(entry, cost, now);
    std::uint64_t units = usable(*entry, now);
    if (cost <= units) {
        charge(entry, cost, now, take);
        units -= cost;
    } else {
        entry->missed = cost;
        if (entry->dry == cost && (is_asking(*entry, now) || now < entry->ask_again)) {
            reject(*entry, now, take);
        }
    }
    take->ask = next_ask(entry, *client.policy, size, units, now);
    if (take->ask.amount != 0 && take->use == LeaseUse::kNone && entry->dry == cost) {
        reject(*entry, now, take);
    }
    unlock(entry);
}

// The locked entry for the answer to an ask; null if the ask has no effect any more.
Leases::Entry* Leases::answered(const LeaseClient& client, const LeaseAsk& ask,
                                const Process& process) const {
    Entry* entry = find(client.hash, process);
    if (entry != nullptr && (entry->asked != ask.id || entry->mark != policy_mark(*client.policy) ||
                             !is_asking(*entry, process.clock()))) {
        unlock(entry);
        return nullptr;
    }
    return entry;
}

LeaseRest Leases::grant(const LeaseClient& client, const LeaseAsk& ask, const Decision& decision, Micros time,
                        Micros sent_at, const Process& process) {
    leased_.fetch_add(ask.amount, std::memory_order_relaxed);
    const LeaseHolding holding = holding_of(*client.policy, decision, time);
    const LeaseRest unused = {holding.window_end != 0 ? ask.amount : 0, time};
    Entry* entry = answered(client, ask, process);
    if (entry == nullptr) {
        return unused;
    }
    const Micros now = process.clock();
    entry->asked = 0;
    entry->round_trip = now - entry->asked_at;
    entry->rate = decision.rate;
    entry->remaining = decision.remaining;
    entry->reset_at = sent_at + decision.reset_after;
    entry->ahead = time - sent_at;
    if (now >= entry->ask_again) {
        entry->dry = 0;
    }
    LeaseRest rest = unused;
    if (now - sent_at < holding.lasts) {
        rest = {};
        add_portion(entry,
                    {ask.id, decision.rate, ask.amount, sent_at + holding.lasts, sent_at + holding.drains,
                     holding.window_end, time},
                    now, &rest);
    }
    unlock(entry);
    return rest;
}

LeaseAsk Leases::refuse(const LeaseClient& client, const LeaseAsk& ask, const Decision& decision, Micros time,
                        bool last, const Process& process) {
    Entry* entry = answered(client, ask, process);
    if (entry == nullptr) {
        return {};
    }
    const Micros now = process.clock();
    const std::uint64_t cost = entry->missed;
    const std::uint64_t left = decision.remaining >= cost ? std::min(decision.remaining, ask.amount - 1)
                                                          : std::min(cost, ask.amount - 1);
    // What is left is less than what was asked for, and may be used up meanwhile. The time of the first
    // refusal then holds: it is that of a larger amount, so that nobody comes back too early.
    entry->rate = decision.rate;
    entry->remaining = decision.remaining;
    entry->excess_milli = decision.excess_milli;
    entry->reset_at = now + decision.reset_after;
    entry->retry_at = now + (decision.retry_after == kNever ? kLeaseHorizon : decision.retry_after);
    entry->ahead = time - entry->asked_at;
    entry->dry = cost;
    entry->ask_again = now + kLeaseHorizon;
    if (last || left == 0) {
        entry->asked = 0;
        unlock(entry);
        return {};
    }
    entry->asked_at = now;
    const std::uint32_t id = entry->asked;
    unlock(entry);
    return {left, id};
}

void Leases::fail(const LeaseClient& client, const LeaseAsk& ask, const Process& process) {
    Entry* entry = answered(client, ask, process);
    if (entry != nullptr) {
        entry->asked = 0;
        entry->dry = 0;
        entry->ask_again = process.clock() + kLeaseHorizon;
        unlock(entry);
    }
}

bool Leases::put_back(std::uint64_t client, std::uint32_t portion, std::uint64_t amount,
                      const Process& process) {
    Entry* entry = find(client, process);
    if (entry == nullptr) {
        return false;
    }
    bool found = false;
    for (Portion& own : entry->portions) {
        if (own.id == portion && own.id != 0 && process.clock() < own.ends) {
            own.left += amount;
            found = true;
            break;
        }
    }
    unlock(entry);
    return found;
}

void Leases::forget(std::uint64_t client, const Process& process) {
    // Another process may have given the client a second entry at the same time.
    for (unsigned i = 0; i < kWays; i++) {
        Entry* entry = find(client, process);
        if (entry == nullptr) {
            return;
        }
        drop_units(entry);
        entry->client.store(0, std::memory_order_relaxed);
        Set* set = set_of(client);
        set->tags[entry - set->entries].store(0, std::memory_order_relaxed);
        unlock(entry);
    }
}

bool Leases::next_idle(std::uint64_t* from, std::uint64_t most, bool all, const Process& process,
                       IdleLease* idle) {
    *from = *from < sets_ ? *from : 0;
    for (std::uint64_t looked = 0; looked < most; looked++) {
        Set* set = set_at(*from);
        for (unsigned way = 0; way < kWays; way++) {
            Entry* entry = &set->entries[way];
            if (set->tags[way].load(std::memory_order_relaxed) == 0 || !lock(entry, process)) {
                continue;
            }
            const Micros now = process.clock();
            const Portion& portion = entry->portions[0];
            const bool unused = all || now >= portion.ends || is_idle(*entry, now, kLeaseIdle);
            idle->rest = unused ? take_rest(entry) : LeaseRest();
            idle->portion = portion.id;
            if (idle->rest.amount != 0) {
                idle->client = entry->client.load(std::memory_order_relaxed);
                idle->rates = entry->rates;
                idle->name_size = entry->name_size;
                std::copy_n(entry->name, entry->name_size, idle->name);
            } else if (is_idle(*entry, now, kGone)) {
                drop_units(entry);
                entry->client.store(0, std::memory_order_relaxed);
                set->tags[way].store(0, std::memory_order_relaxed);
            }
            unlock(entry);
            if (idle->rest.amount != 0) {
                return true;
            }
        }
        *from = *from + 1 < sets_ ? *from + 1 : 0;
        if (*from == 0) {
            return false;
        }
    }
    return false;
}

std::uint64_t Leases::units(const LeaseClient& client, const Process& process) {
    Entry* entry = find(client.hash, process);
    if (entry == nullptr) {
        return 0;
    }
    const std::uint64_t units =
        entry->mark == policy_mark(*client.policy) ? usable(*entry, process.clock()) : 0;
    unlock(entry);
    return units;
}

LeaseTotals Leases::totals() const {
    return {asks_.load(std::memory_order_relaxed), leased_.load(std::memory_order_relaxed),
            returned_.load(std::memory_order_relaxed)};
}

}  // namespace rate_limit
