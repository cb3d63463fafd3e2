// A request's limits, wherever their state is: decided together, all or nothing, though Redis answers later.
//
// Limits are charged in the order of their rates, the lowest first, and what was charged is given back
// if another limit then rejects. A limit that many clients share has a higher rate than a client's own, so
// that a client who is over its own limit does not take from the others, not even for the moment until that
// is given back. Memory is looked at before anything is charged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "memory/table_check.h"
#include "store/check_batcher.h"
#include "store/limit.h"

namespace rate_limit {

// The first two are decisions.
enum class Progress : std::uint8_t {
    kAdmitted,
    kRejected,
    kRefused,   // a limit could not be decided, and on_error=closed
    kNoMemory,  // nothing was decided
    kWaiting,   // for Redis
};

class RequestCheck;

// What became of the limits of a request.
struct RequestOutcome {
    Progress progress;
    redis::Error error;  // why a Redis did not answer; kNone if all did
    Micros decided_at;   // time of day, by Redis' clock if Redis decided
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

    // Starts to decide. The deny cache has been asked before.
    Progress start();

    // Drops the answer. Limits that are charged already stay charged.
    void forget();

    // The request has ended. A copy of the check decides the rest, so that all limits are charged or none.
    // The copy is passed to `gone`, which may be null, once it is decided.
    using Gone = void (*)(const RequestCheck& check);
    void leave(Gone gone);

    Progress progress() const { return progress_; }
    RequestOutcome outcome() const {
        return {progress_,   error_,         decided_at_ != 0 ? decided_at_ : wall_(),
                started_at_, process_.clock, nullptr};
    }

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
    void copy_decisions(const MemoryLimits& memory);
    Progress look_at_memory();
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
    void note_rejection();
    bool is_refundable(std::size_t index) const;
    void give_back();
    void give_back_to_memory();

    Limit* limits_;
    std::size_t count_;
    const Process& process_;
    Micros (*wall_)();
    void (*done_)(RequestCheck* check);
    Question question_;
    Gone gone_ = nullptr;
    CheckBatcher* asked_ = nullptr;  // whom the question is for
    redis::Slot slots_[kMaxLimits];
    std::uint8_t order_[kMaxLimits];  // in which limits are charged
    Progress progress_ = Progress::kWaiting;
    redis::Error error_ = redis::Error::kNone;
    Micros decided_at_ = 0;               // 0 while nobody has
    Micros started_at_ = 0;               // by the process's clock
    bool waited_ = false;                 // for an answer
    bool has_tables_ = false;             // memory may have a part in it
    bool scattered_ = false;              // its limits are in several places
    bool tried_[kMaxLimits] = {};         // its Redis was asked, or could not be
    bool in_memory_[kMaxLimits] = {};     // memory has decided it, or could not
    Micros charged_at_[kMaxLimits] = {};  // by the process's clock; 0 if it was not, or no longer is
};

}  // namespace rate_limit
