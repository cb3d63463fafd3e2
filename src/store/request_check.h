// Decides a request's limits in memory and in Redis together: all of them are charged or none, though Redis
// answers later.
//
// Limits are charged in the order of their rates, the lowest first. If a limit rejects, the limits that were
// charged before get a refund. A limit that many clients share usually has a higher rate than the limit of
// one client, so a client that is over its own limit takes nothing from the other clients, not even until a
// refund. Limits in memory are checked before any limit is charged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "algorithms/check.h"
#include "memory/table_check.h"
#include "store/check_batcher.h"
#include "store/limit.h"
#include "store/refund.h"

namespace rate_limit {

// kAdmitted and kRejected are decisions.
enum class Progress : std::uint8_t {
    kAdmitted,
    kRejected,
    kRefused,   // a limit with on_error=closed could not be decided
    kNoMemory,  // nothing was decided
    kWaiting,   // for Redis
};

class RequestCheck;

// The result of deciding a request's limits.
struct RequestOutcome {
    Progress progress;
    redis::Error error;  // of the last Redis that did not answer; kNone if all did
    Micros started_at;   // by `clock`
    Micros (*clock)();
    RequestCheck* check;  // while the progress is kWaiting, else null
};

struct MemoryLimits;

class RequestCheck {
  public:
    // `limits` and the check must live until the check is decided, forgotten or left. At most kMaxLimits.
    // `wall` reads the time of day. `done` is called once, if start() returned kWaiting, unless the check is
    // forgotten or left.
    RequestCheck(Limit* limits, std::size_t count, const Process& process, Micros (*wall)(),
                 void (*done)(RequestCheck* check));

    // Starts to decide. The caller has already looked into the deny cache.
    Progress start();

    // Drops the answer. Limits that have been charged stay charged.
    void forget();

    // Called when the request has ended. A copy of the check continues, so that all limits are charged or
    // none. When the copy is decided, it is passed to `gone`, which may be null.
    using Gone = void (*)(const RequestCheck& check);
    void leave(Gone gone);

    Progress progress() const { return progress_; }
    RequestOutcome outcome() const { return {progress_, error_, started_at_, process_.clock, nullptr}; }

    const Limit* begin() const { return limits_; }
    const Limit* end() const { return limits_ + count_; }

    void* data = nullptr;  // the caller's

  private:
    static void on_answer(Question* question);
    static void end_copy(RequestCheck* copy);
    RequestCheck* copy() const;
    bool together(std::size_t a, std::size_t b) const;
    bool precedes(std::size_t a, std::size_t b) const;
    void arrange();
    TableLimit* add_memory_limit(std::size_t index, MemoryLimits* memory) const;
    void gather_memory(std::size_t end, MemoryLimits* memory) const;
    void copy_decisions(const MemoryLimits& memory, Micros now);
    Progress look_at_memory();
    Progress take_leases();
    std::size_t next_position() const;
    void choose(std::size_t position);
    Progress ask_next();
    Progress take_answer();
    bool tell_memory(MemoryLimits* memory) const;
    Progress reject_for_memory(const MemoryLimits& memory);
    bool must_refuse();
    Progress charge_memory(std::size_t end);
    Progress leave_memory_out(const MemoryLimits& memory);
    Progress reject();
    void count_rejection();
    void give_back() { refund(limits_, count_, process_, wall_); }

    Limit* limits_;
    std::size_t count_;
    const Process& process_;
    Micros (*wall_)();
    void (*done_)(RequestCheck* check);
    Question question_;
    Gone gone_ = nullptr;
    CheckBatcher* asked_ = nullptr;  // the receiver of the question
    redis::HashSlot slots_[kMaxLimits];
    std::uint8_t order_[kMaxLimits];  // indices of the limits, in the order of charging
    Progress progress_ = Progress::kWaiting;
    redis::Error error_ = redis::Error::kNone;
    Micros started_at_ = 0;            // by the process's clock
    bool waited_ = false;              // for a reply of Redis
    bool has_tables_ = false;          // a zone has a table
    bool has_leases_ = false;          // a zone leases units
    bool scattered_ = false;           // its limits differ in batcher or slot
    bool tried_[kMaxLimits] = {};      // its Redis was asked or is unavailable
    bool in_memory_[kMaxLimits] = {};  // its table was asked; it may have had no free slot
};

}  // namespace rate_limit
