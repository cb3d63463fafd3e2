// Carries to Redis what the clients of a table were admitted, every so often and many in one call, and back
// what Redis has of them.
//
// Belongs to one thread. Of the processes that share a table, one at a time does so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "redis/client.h"
#include "redis/loop.h"
#include "redis/router.h"
#include "store/sync_ledger.h"

namespace rate_limit {

class SyncSender {
  public:
    struct Options {
        std::string zone;    // its name
        std::string prefix;  // of every key
        redis::Milliseconds every = 1000;
        SyncLedger::Mode mode = SyncLedger::Mode::kSync;
        redis::Milliseconds later = 0;  // than others who would do the same, so that one of them does it all
    };

    // The table has unsent counts; it, the policy, the process, the loop and the router must outlive this,
    // but for the router once stop() was called. The router knows the script for it: kSyncScript. `wall`
    // reads the time of day. Null if there is no memory.
    static SyncSender* make(Table* table, const Policy& policy, const Options& options, redis::Router* router,
                            redis::Loop* loop, const Process& process, Micros (*wall)());
    ~SyncSender();
    SyncSender(const SyncSender&) = delete;
    SyncSender& operator=(const SyncSender&) = delete;

    // The process is about to end: sends what is owed, for no longer than a second, and then leaves it to
    // others.
    void end();

    // Sends nothing more. What is on its way may still be answered.
    void stop();

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
    void on_timer();
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
    redis::Router* router_;
    redis::Loop* loop_;
    Micros (*wall_)();
    SyncLedger ledger_;
    redis::Alarm* timer_ = nullptr;
    std::vector<std::unique_ptr<Trip>> free_;
    std::size_t under_way_ = 0;
    std::size_t failed_ = 0;  // in this round
    bool ending_ = false;
    redis::Milliseconds ended_at_ = 0;  // if so
    std::vector<std::uint64_t> state_;  // room for one
};

}  // namespace rate_limit
