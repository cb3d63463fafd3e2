// Collects the unsent counts of a table in batches, and applies the replies of Redis to the table.
//
// A ledger uses neither Redis nor a clock. Its caller sends each batch to a receiver that applies each
// sequence number of a sender at most once, and ignores a number that is not above the last one. So a batch
// whose outcome is unknown is sent again with its old number, even by another process: the table records what
// is in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "algorithms/check.h"
#include "memory/process.h"
#include "memory/table.h"

namespace rate_limit {

// The amount to charge to one client.
struct SyncEntry {
    std::uint64_t client;  // Table::hash of its name
    std::uint64_t slot;    // the number of its slot when the entry was created
    std::uint64_t amount;  // requests; 0 only reads the state
    std::uint8_t name_size;
    char name_text[kLongestName];
    RateList rates;  // of the client; see SyncLedger::policy_of

    SyncEntry() = default;

    // Leaves the unused parts of the name and of the rates uninitialized.
    SyncEntry(const Slot& from, const UnsentCount& counts, const RateList& rates, std::uint64_t amount);

    std::string_view name() const { return {name_text, name_size}; }  // as short_name returns it
};

// The entries of one call. The sender and the sequence number show whether it was applied before.
struct SyncBatch {
    std::uint64_t sender = 0;
    std::uint64_t sequence = 0;
    Micros since = 0;  // all requests were admitted after this, by the clock that decides; 0 if unknown
    std::vector<SyncEntry> entries;  // of different clients
};

// The most clients in one call. More would block Redis for over a millisecond.
constexpr std::size_t kClientsInCall = 200;

// Belongs to one thread. Of the processes that share a table, one sends at a time: the leader of its unsent
// counts.
class SyncLedger {
  public:
    enum class Mode : std::uint8_t {
        kSync,      // the states in Redis replace those of the table
        kFallback,  // the states of the table stay
    };

    // The key in Redis that stores the last sequence number applied of a sender.
    enum class Guard : std::uint8_t {
        kSender,  // one key: numbers must arrive in order, so one batch is in flight at a time
        kClient,  // a key for each client: any number of batches may be in flight, each of one client
    };

    // The table has unsent counts. `policy` is that of the zone's requests; if several differ, the one that
    // admits most at once. It has no rates if rates differ between clients, and debt for kSync. It may change
    // while the ledger lives. All that is referred to must outlive the ledger.
    SyncLedger(Table* table, const Policy& policy, Mode mode, Guard guard, const Process& process);

    ~SyncLedger() { resign(); }
    SyncLedger(const SyncLedger&) = delete;
    SyncLedger& operator=(const SyncLedger&) = delete;

    // Begins a round, in which next() returns each client with an unsent count once. Must be followed by
    // next(), even if no client has an unsent count. An unfinished round continues.
    void begin_round();

    // The next batch, of at most `most` clients. False if the round has no more, if a batch must be confirmed
    // first, or if another process sends. `now` is the time by which requests are decided. Requests that no
    // longer affect a decision are not sent.
    //
    // Retries come first: batches that failed in an earlier round, or that an earlier leader left. A retry
    // has its old number and its old clients, which may be more than `most`. Its amounts shrink to what still
    // affects a decision, possibly to 0. With kClient, retries and new batches alternate, so that clients
    // whose calls keep failing do not block the others.
    //
    // For each batch, the caller must call confirm() for every entry, or failed().
    bool next(Micros now, std::size_t most, SyncBatch* batch);

    // It is unknown whether the batch was applied: it is retried in the next round, without confirmed
    // entries. With kSender this ends the round.
    void failed(const SyncBatch& batch);

    // An entry was applied, now or before. `state`, of the table's layout, is the client's state in Redis at
    // Redis's `time`; null if there is none. kFallback uses neither. `overshoot` is how many of the requests
    // exceeded the limit; those that the client does not make up for by waiting are added to the overshoot of
    // the table. A client that is no longer in the batch is left alone.
    void confirm(const SyncBatch& batch, std::size_t index, const std::uint64_t* state, Micros time,
                 std::uint64_t overshoot);

    // Whether this process is the one that sends; takes the lead if no process has it, and then finds the
    // batches in flight that an earlier leader left. next() calls lead().
    bool lead();

    // Lets another process lead at once. It retries what is in flight.
    void resign();

    // The policy by which an entry is charged. It may be stored in `*room`, which must live as long.
    const Policy& policy_of(const SyncEntry& entry, Policy* room) const;

  private:
    // A client in a batch whose outcome is unknown.
    struct Member {
        std::uint64_t sender;
        std::uint64_t sequence;
        std::uint64_t client;
        Micros since;
    };

    static bool is_earlier(const Member& a, const Member& b);

    bool varied() const { return table_->layout().varied; }
    const RateList& rates_of(const UnsentCount& counts, RateList* room) const;
    Micros local_time(Micros now) const;
    bool drains() const;
    std::uint64_t used(const Slot& slot, const UnsentCount& counts, Micros now) const;
    std::uint64_t worth_sending(const Slot& slot, const UnsentCount& counts, Micros since, Micros now) const;
    void find_retries();
    bool retry(Micros now, SyncBatch* batch);
    void retry(const Member& member, Micros now, SyncBatch* batch);
    bool collect(Micros now, std::size_t most, SyncBatch* batch);
    std::uint64_t prefetch_unsent(std::uint64_t from) const;
    void collect(const Slot& slot, Micros now, SyncBatch* batch);
    bool is_fuller(const std::uint64_t* state, const std::uint64_t* than, const Policy& policy, Micros time,
                   Micros most) const;
    void replace(const Slot& slot, const std::uint64_t* state) const;
    void weigh(const Slot& slot, const UnsentCount& counts, Micros time) const;
    std::uint64_t beyond_limit(const Policy& policy, const std::uint64_t* state, Micros time,
                               std::uint64_t overshoot, UnsentCount* counts) const;
    std::uint64_t beyond_bucket(const Policy& policy, const std::uint64_t* state, Micros time,
                                std::uint64_t overshoot, UnsentCount* counts) const;
    void take_over(const Slot& slot, const UnsentCount& counts, const std::uint64_t* state, Micros time,
                   Micros most) const;
    void release(const Slot& slot) const;

    Table* table_;
    const Policy* policy_;
    Mode mode_;
    Guard guard_;
    const Process* process_;
    bool leads_ = false;
    Micros pass_ = 0;              // when the current pass over the slots began
    Micros last_pass_ = 0;         // when the pass before began
    Micros lag_ = 0;               // the longest time from the `since` of a batch until the batch was created
    std::uint64_t cursor_;         // the slot at which the round continues
    std::size_t unconfirmed_ = 0;  // kSender: entries in flight
    std::deque<Member> retries_;   // in the order in which they are sent
    std::size_t due_ = 0;          // how many of the retries belong to this round
    bool round_failed_ = false;    // kSender
    bool retried_ = false;         // kClient: whether the last batch was a retry
};

}  // namespace rate_limit
