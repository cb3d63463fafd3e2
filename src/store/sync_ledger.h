// Tells Redis what the clients of a table were admitted, and the table what Redis then knows of them.
//
// Knows neither Redis nor a clock: whoever drives it makes a call of each batch, to something that applies a
// number of a sender once and what comes with a lower one, or the same again, not at all. A call whose fate
// is not known is made again with its old number, even by another process: what is on its way stands in the
// table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "memory/process.h"
#include "memory/table.h"

namespace rate_limit {

// What a client is to be charged.
struct Entry {
    std::uint64_t client;  // Table::hash of its name
    std::uint64_t slot;    // the number of the one that it had
    std::uint32_t amount;  // requests; 0 only looks
    std::uint8_t name_size;
    char name_text[kLongestName];
    RateList rates;  // the client's; see SyncLedger::policy_of

    Entry() = default;

    // Sets no more of the name and the rates than there are.
    Entry(const Slot& from, const UnsentCount& counts, const RateList& rates, std::uint32_t amount);

    std::string_view name() const { return {name_text, name_size}; }  // is short: see short_name
};

// What goes out together. The sender and the number say whether it was applied before.
struct Batch {
    std::uint64_t sender = 0;
    std::uint64_t sequence = 0;
    Micros since = 0;  // all was admitted after this, by the clock that decides; 0 if that is not known
    std::vector<Entry> entries;  // each of another client
};

// The most clients in one call: more would keep Redis from others for over a millisecond or so.
constexpr std::size_t kClientsInCall = 200;

// Belongs to one thread. Of the processes that share a table one at a time sends, whichever asks first.
class SyncLedger {
  public:
    enum class Mode : std::uint8_t {
        kSync,      // the table takes over what Redis has
        kFallback,  // the table's states stay as they are
    };

    // What remembers the last number of a sender that was applied.
    enum class Guard : std::uint8_t {
        kSender,  // one key: numbers must arrive in order, so one batch is under way at a time
        kClient,  // a key for each client: any number may be under way, each of one client
    };

    // The table has unsent_counts. `policy` is the zone's, the one that admits most at once if there are
    // several: without rates if these differ between clients, with debt for kSync, as those of the zone's
    // requests, and may change meanwhile. All that is referred to must outlive this.
    SyncLedger(Table* table, const Policy& policy, Mode mode, Guard guard, const Process& process);

    ~SyncLedger() { resign(); }
    SyncLedger(const SyncLedger&) = delete;
    SyncLedger& operator=(const SyncLedger&) = delete;

    // To be called whenever it is time to send, and next() after it, though nobody may owe anything: from now
    // on next() hands out once each client that does. A round that is not finished goes on.
    void begin_round();

    // The next batch, of at most `most` clients; false if there is none in this round, one has to be settled
    // first, or another process sends. `now` is the time by which requests are decided. What a client owes
    // but no longer counts is not sent.
    //
    // First come those whose fate is not known: they failed in an earlier round, or were left by a process
    // that sent before. They have the number and the members that they had, so that they may be more than
    // `most`, but no more than still counts of their amounts, which may be 0. With kClient they take turns
    // with others, so that those who fail for long keep nobody waiting.
    //
    // Each entry must be settled, or the batch must fail.
    bool next(Micros now, std::size_t most, Batch* batch);

    // The batch may or may not have been applied: it comes again in the next round, without what was settled.
    // With kSender this ends the round.
    void failed(const Batch& batch);

    // An entry was applied, now or before. `state`, of the table's layout, is what Redis has of the client at
    // its own `time`, null if nothing; unused, as the time, by kFallback. `overshoot` is how many of the
    // requests did not fit; those of them are counted that the client does not make up for by waiting. Does
    // nothing to a client that is no longer in the batch.
    void confirm(const Batch& batch, std::size_t index, const std::uint64_t* state, Micros time,
                 std::uint32_t overshoot);

    // Whether this process is the one that sends; takes the lead if no process has it, and then finds the
    // batches in flight that an earlier leader left. next() calls lead().
    bool lead();

    // Lets another process send at once. What is on its way, that process sends again.
    void resign();

    // The policy under which an entry is charged. It may be in `room`, which must live as long.
    const Policy& policy_of(const Entry& entry, Policy* room) const;

  private:
    // Who is in a batch whose fate is not known.
    struct Member {
        std::uint64_t sender;
        std::uint64_t sequence;
        std::uint64_t client;
        Micros since;
    };

    static bool is_earlier(const Member& a, const Member& b);

    bool varied() const { return table_->layout().varied; }
    const RateList& rates_of(const UnsentCount& counts, RateList* room) const;
    bool drains() const;
    std::uint32_t used(const Slot& slot, const UnsentCount& counts, Micros now) const;
    std::uint32_t worth_sending(const Slot& slot, const UnsentCount& counts, Micros since, Micros now) const;
    void find_left();
    bool repeat(Micros now, Batch* batch);
    void repeat(const Member& member, Micros now, Batch* batch);
    bool collect(Micros now, std::size_t most, Batch* batch);
    std::uint64_t prefetch_unsent(std::uint64_t from) const;
    void collect(const Slot& slot, Micros now, Batch* batch);
    bool is_fuller(const std::uint64_t* state, const std::uint64_t* than, const Policy& policy,
                   Micros time) const;
    void replace(const Slot& slot, const std::uint64_t* state) const;
    void weigh(const Slot& slot, const UnsentCount& counts, Micros time) const;
    std::uint32_t beyond_limit(const Policy& policy, const std::uint64_t* state, Micros time,
                               std::uint32_t overshoot, UnsentCount* counts) const;
    std::uint32_t beyond_level(const Policy& policy, const std::uint64_t* state, Micros time,
                               std::uint32_t overshoot, UnsentCount* counts) const;
    void take_over(const Slot& slot, const UnsentCount& counts, const std::uint64_t* state,
                   Micros time) const;
    void let_go(const Slot& slot) const;

    Table* table_;
    const Policy* policy_;
    Mode mode_;
    Guard guard_;
    const Process* process_;
    bool leads_ = false;
    Micros pass_ = 0;  // when the slots were begun to be looked at in turn, and the time before
    Micros last_pass_ = 0;
    std::uint64_t cursor_;         // the slot at which the round goes on
    std::size_t unconfirmed_ = 0;  // kSender: entries that are under way
    std::deque<Member> left_;      // to be repeated, in this order
    std::size_t repeats_ = 0;      // so many of them in this round
    bool ended_ = false;           // kSender: this round, by a failure
    bool repeated_ = false;        // kClient: whether the last batch was one that comes again
};

}  // namespace rate_limit
