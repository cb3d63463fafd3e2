// Sends the unsent counts of a table to Redis, many clients in one call, and copies the states that Redis
// replies with into the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/periodic_task.h"
#include "fleet/sync_ledger.h"
#include "redis/client.h"
#include "redis/router.h"

namespace rate_limit {

// The Leader is that of the table's unsent counts.
class SyncSender final : public PeriodicTask {
  public:
    struct Options {
        std::string zone;    // name of the zone
        std::string prefix;  // of every key
        redis::Milliseconds every = 1000;
        SyncLedger::Mode mode = SyncLedger::Mode::kSync;
        redis::Milliseconds later = 0;  // added before the first round; differs between workers, so that the
                                        // same worker leads all zones
    };

    // The table has unsent counts. The router loads kSyncScript. `wall` reads the time of day. Lifetimes
    // are those of PeriodicTask; the table and the policy must outlive the SyncSender.
    static SyncSender* make(Table* table, const Policy& policy, const Options& options, redis::Router* router,
                            redis::Loop* loop, const Process& process, Micros (*wall)());

  private:
    // A batch in flight.
    struct Sent {
        SyncSender* sync_sender = nullptr;
        SyncBatch batch;
        redis::HashSlot slot = 0;
        Micros sent_at = 0;
    };

    SyncSender(Table* table, const Policy& policy, const Options& options, redis::Router* router,
               redis::Loop* loop, const Process& process, Micros (*wall)());

    static void on_answer(void* self, redis::Error error, std::string_view reply);
    void run() override;
    void on_end() override;
    bool lead() override { return ledger_.lead(); }
    void send_all();
    void send_batches();
    bool out_of_time() const;
    bool send(Sent* sent);
    void append_guard(const SyncBatch& batch, redis::Buffer* buffer) const;
    void append_keys(const SyncBatch& batch, redis::Buffer* buffer) const;
    void append_entries(const SyncBatch& batch, redis::Buffer* policies, redis::Buffer* entries) const;
    bool apply_reply(const Sent& sent, std::string_view reply);
    void set_clock(Micros sent_at, Micros time) const;
    Micros now() const;
    redis::HashSlot hash_slot_of(std::string_view client) const;

    Table* table_;
    const Policy* policy_;
    Options options_;
    Micros (*wall_)();
    SyncLedger ledger_;
    std::vector<std::unique_ptr<Sent>> free_;  // to be used again
    std::size_t in_flight_ = 0;                // batches
    std::size_t failed_ = 0;                   // batches of this round
    bool ending_ = false;                      // on_end() was called
    redis::Milliseconds ended_at_ = 0;         // when
    std::vector<std::uint64_t> state_;         // room for the state of a client
};

}  // namespace rate_limit
