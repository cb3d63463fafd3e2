// Sends the unsent counts of a table to Redis, many clients in one call, and copies the states that Redis
// replies with into the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "redis/client.h"
#include "redis/router.h"
#include "store/periodic_task.h"
#include "store/sync_ledger.h"

namespace rate_limit {

// The Leader is that of the table's unsent counts.
class SyncSender final : public PeriodicTask {
  public:
    struct Options {
        std::string zone;    // its name
        std::string prefix;  // of every key
        redis::Milliseconds every = 1000;
        SyncLedger::Mode mode = SyncLedger::Mode::kSync;
        redis::Milliseconds later = 0;  // added before the first round; differs between workers, so that the
                                        // same worker leads all zones
    };

    // The table has unsent counts. The router loads kSyncScript. `wall` reads the time of day. Null if memory
    // is exhausted. Lifetimes are those of PeriodicTask; the table and the policy must outlive the
    // SyncSender.
    static SyncSender* make(Table* table, const Policy& policy, const Options& options, redis::Router* router,
                            redis::Loop* loop, const Process& process, Micros (*wall)());

  private:
    // A batch on its way.
    struct Trip {
        SyncSender* sync_sender = nullptr;
        Batch batch;
        redis::Slot slot = 0;
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
    bool is_over() const;
    bool send(Trip* trip);
    void append_guard(const Batch& batch, redis::Buffer* buffer) const;
    void append_keys(const Batch& batch, redis::Buffer* buffer) const;
    void append_entries(const Batch& batch, redis::Buffer* policies, redis::Buffer* entries) const;
    bool take_in(const Trip& trip, std::string_view reply);
    void set_clock(Micros sent_at, Micros time) const;
    Micros now() const;
    redis::Slot slot_of(std::string_view client) const;

    Table* table_;
    const Policy* policy_;
    Options options_;
    Micros (*wall_)();
    SyncLedger ledger_;
    std::vector<std::unique_ptr<Trip>> free_;
    std::size_t under_way_ = 0;
    std::size_t failed_ = 0;  // in this round
    bool ending_ = false;
    redis::Milliseconds ended_at_ = 0;  // if so
    std::vector<std::uint64_t> state_;  // room for one
};

}  // namespace rate_limit
