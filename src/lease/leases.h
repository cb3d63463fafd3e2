// The leases of a zone's clients, in memory that all workers of an instance share.
//
//     | Leases | sets |      a set: | 8 tags, 2 bytes each | 6 paces, 8 bytes each | 8 entries |
//
// A client may have any entry of one set. The tags and paces of a set are one cache line, which is all that
// most clients need: a client without an entry has a pace, the number of its recent requests, and gets an
// entry once it has made enough of them.
//
// Each entry has a lock, the id of the process that holds it. If the holder has died, its units are dropped:
// the entry may be half written. If a living process holds the lock for too long, the request does without
// the lease. Nothing is allocated: without a free entry, a client does without a lease.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/client_name.h"
#include "core/decision.h"
#include "lease/lender.h"
#include "lease/terms.h"
#include "memory/leader.h"
#include "memory/process.h"
#include "memory/siphash.h"

namespace rate_limit {

enum class LeaseUse : std::uint8_t {
    kNone,   // Redis has to decide
    kTaken,  // the request is charged to the lease
    kDry,    // Redis had nothing left a moment ago: the request is rejected
};

// What take() decides. `decision` and `decided_at`, by Redis's clock, are set unless `use` is kNone.
struct LeaseTake {
    LeaseUse use = LeaseUse::kNone;
    std::uint32_t portion = 0;  // that was charged
    Decision decision;
    Micros decided_at;
    LeaseAsk ask;    // the caller asks the Lender for it
    LeaseRest rest;  // the caller gives it back to the Lender
};

// Units that an idle client holds, with what is needed to give them back.
struct IdleLease {
    LeaseRest rest;
    std::uint32_t portion;  // of the units, for put_back()
    std::uint64_t client;
    RateList rates;
    std::size_t name_size;
    char name[kLongestName];
};

// Sums since the zone was created.
struct LeaseTotals {
    std::uint64_t asks;      // calls for a portion
    std::uint64_t leased;    // units that Redis has granted
    std::uint64_t returned;  // units that were given back to Redis
};

// All times are by Process::clock, except those by Redis's clock.
class Leases {
  public:
    // The smallest size that create() accepts.
    static std::size_t least_size();

    // Creates the leases in `size` bytes at `memory`, all zero and aligned to 64 bytes; null if `size` is too
    // small. They live in that memory and are never destroyed. `key` must be random.
    static Leases* create(void* memory, std::size_t size, const HashKey& key);

    std::uint64_t hash(std::string_view client) const {
        const std::uint64_t hash = siphash(key_, client);
        return hash != 0 ? hash : 1;
    }

    // Charges a request of `cost`, above 0, to the lease of its client. Also decides whether to ask for
    // another portion, which the client's pace determines; until grant(), refuse() or fail(), or for kAskFor
    // at most, there is no other ask for the client.
    void take(const LeaseClient& client, const LeaseSize& size, std::uint64_t cost, Micros now,
              const Process& process, LeaseTake* take);

    // Redis has granted `amount` to an ask that was sent at `sent_at`. Returns units that cannot be used: the
    // caller gives them back.
    LeaseRest grant(const LeaseClient& client, const LeaseAsk& ask, const Decision& decision, Micros time,
                    Micros sent_at, const Process& process);

    // Redis has refused an ask. Returns what else to ask for: what is left, or what the client's requests
    // cost, to learn when it is available. With `last`, nothing: requests are then rejected for
    // kLeaseHorizon.
    LeaseAsk refuse(const LeaseClient& client, const LeaseAsk& ask, const Decision& decision, Micros time,
                    bool last, const Process& process);

    // An ask was not answered, or could not be sent.
    void fail(const LeaseClient& client, const LeaseAsk& ask, const Process& process);

    // Adds units of a request that was charged to `portion` back to it. False if the portion has ended.
    bool put_back(std::uint64_t client, std::uint32_t portion, std::uint64_t amount, const Process& process);

    // Drops the lease of a client, and ignores the answer to an ask in flight.
    void forget(std::uint64_t client, const Process& process);

    // Finds the next client, from set `*from` on, that has units of a window that it cannot or does not use,
    // or any units if `all`. Removes the units from the lease. Looks at no more than `most` sets. False if
    // there is none; `*from` is then where to continue, 0 after the last set. Frees the entries of clients
    // that are gone.
    bool next_idle(std::uint64_t* from, std::uint64_t most, bool all, const Process& process,
                   IdleLease* idle);

    // How many units the client may use at present.
    std::uint64_t units(const LeaseClient& client, const Process& process);

    void count_ask() { asks_.fetch_add(1, std::memory_order_relaxed); }
    void count_returned(std::uint64_t amount) { returned_.fetch_add(amount, std::memory_order_relaxed); }
    LeaseTotals totals() const;

    // Elects the process that gives back.
    Leader& leader() { return leader_; }

    // An ask whose answer is this late has no effect.
    static constexpr Micros kAskFor = 200'000;

  private:
    static constexpr unsigned kWays = 8;
    static constexpr unsigned kPaces = 6;

    // A part of a lease. Uses never add to it, except for refunds.
    struct Portion {
        std::uint32_t id;    // 0 if there is none
        std::uint32_t rate;  // the index of the rate that Redis has reported
        std::uint64_t left;
        Micros ends;
        Micros drains;      // of a bucket
        Micros window_end;  // by Redis's clock; 0 of a bucket
        Micros charged_at;  // by Redis's clock
    };

    // Everything except `client` and `lock` requires the lock.
    struct alignas(64) Entry {
        std::atomic<std::uint64_t> client;  // 0 if the entry is free
        std::atomic<std::uint32_t> lock;
        std::uint32_t last_id;
        std::uint64_t mark;  // of the policy
        Micros used_at;
        Portion portions[2];  // the older one first

        Micros tick;           // when `demand` was last 0
        std::uint64_t demand;  // units since then
        std::uint64_t pace;    // units a second

        std::uint32_t asked;  // id of the ask in flight; 0 if there is none
        std::uint32_t rate;   // index of the rate that Redis reported last
        Micros asked_at;
        Micros ask_again;  // no ask before
        Micros round_trip;
        std::uint64_t missed;     // the cost of the last request that found too little
        std::uint64_t dry;        // Redis has no units: the cost of the requests to reject; else 0
        std::uint64_t remaining;  // in Redis
        std::uint64_t excess_milli;
        Micros reset_at;
        Micros retry_at;
        Micros ahead;  // how far Redis's clock is ahead, at most

        RateList rates;
        std::uint32_t name_size;
        char name[kLongestName];
    };

    struct alignas(64) Set {
        std::atomic<std::uint16_t> tags[kWays];  // 0 if the entry is free
        std::atomic<std::uint64_t> paces[kPaces];
        Entry entries[kWays];
    };

    Leases(const HashKey& key, std::uint64_t sets) : key_(key), sets_(sets) {}

    static std::uint16_t tag_of(std::uint64_t client) { return static_cast<std::uint16_t>(client | 1); }

    Set* set_at(std::uint64_t index) const;
    Set* set_of(std::uint64_t client) const;
    Entry* find(std::uint64_t client, const Process& process) const;
    static bool is_hot(Set* set, std::uint64_t client, Micros now);
    static Entry* claim(Set* set, const LeaseClient& client, Micros now, const Process& process);
    static bool lock(Entry* entry, const Process& process);
    static void unlock(Entry* entry) { entry->lock.store(0, std::memory_order_release); }
    static void drop_units(Entry* entry);
    static bool is_idle(const Entry& entry, Micros now, Micros since);
    static bool is_asking(const Entry& entry, Micros now);
    static LeaseRest take_rest(Entry* entry);
    static LeaseRest restart(Entry* entry, const LeaseClient& client, Micros now);
    static void note_demand(Entry* entry, std::uint64_t cost, Micros now);
    static std::uint64_t usable(const Entry& entry, const Portion& portion, Micros now);
    static std::uint64_t usable(const Entry& entry, Micros now);
    static void charge(Entry* entry, std::uint64_t cost, Micros now, LeaseTake* take);
    static void reject(const Entry& entry, Micros now, LeaseTake* take);
    static LeaseAsk next_ask(Entry* entry, const Policy& policy, const LeaseSize& size, std::uint64_t units,
                             Micros now);
    static void add_portion(Entry* entry, const Portion& portion, Micros now, LeaseRest* rest);
    Entry* answered(const LeaseClient& client, const LeaseAsk& ask, const Process& process) const;

    HashKey key_;
    std::uint64_t sets_;
    std::atomic<std::uint64_t> asks_{0};
    std::atomic<std::uint64_t> leased_{0};
    std::atomic<std::uint64_t> returned_{0};
    Leader leader_;
};

}  // namespace rate_limit
