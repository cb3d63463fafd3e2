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
#include "memory/decided_by.h"
#include "memory/denials.h"
#include "memory/table_check.h"
#include "store/check_batcher.h"
#include "store/heartbeat.h"
#include "store/reason.h"

namespace rate_limit {

// What a zone does while its Redis cannot be asked.
enum class OnError : std::uint8_t { kOpen, kClosed, kLocal };

// One of a request's limits. Client, policy and layout must live until the group is decided, forgotten or
// left; everything else that it points to, as long as the process.
struct Limit {
    std::string_view zone;    // its name
    std::string_view client;  // the client's
    const Policy* policy;
    const StateLayout* layout;
    std::uint32_t cost;
    Table* table;                  // null if the zone has none: it is in Redis, and not on_error=local
    CheckBatcher* batcher;         // null if the zone is in memory
    const Membership* membership;  // of the instances that share the Redis; null if they are not counted
    Denials* denials;              // null if denials are not remembered
    Micros deny_for;               // at most
    OnError on_error;
    DecidedBy decided_by;       // the answer: who decided
    Decision decision;          // and what
    Reason reason = kNoReason;  // why not whom the zone asks first
    bool is_short = false;      // the client's name is as short_name gives it
    void* data = nullptr;       // of whoever asks
};

enum class Progress : std::uint8_t {
    kWaiting,  // `done` will be called
    kAdmitted,
    kRejected,
    kRefused,  // a limit could not be decided and must not be left out
};

struct MemoryLimits;

class RequestCheck {
  public:
    // `limits`, `room` for as many, and the group itself must live until it is decided, forgotten or left;
    // they are no more than kMaxLimits. `wall` reads the time of day.
    RequestCheck(Limit* limits, BatchedLimit* room, std::size_t count, const Process& process,
                 Micros (*wall)(), void (*done)(RequestCheck* group));

    // Starts to decide. `done` is called only after kWaiting, once progress() is something else. `undenied`
    // if it is known already that no denial is remembered.
    Progress start(bool undenied = false);

    // Nobody wants to know: what is charged already stays so.
    void forget();

    // The request has gone. A copy of the group decides what is left, so that all limits are charged or none,
    // and is given to `gone`, which may be null, when it is decided.
    using Gone = void (*)(const RequestCheck& group);
    void leave(Gone gone);

    Progress progress() const { return progress_; }

    // Why a Redis could not be asked; kNone if all could.
    redis::Error error() const { return error_; }

    // When it was decided: by Redis' clock, if Redis did.
    Micros decided_at() const { return decided_at_ != 0 ? decided_at_ : wall_(); }

    // When it was started, by the process's clock.
    Micros started_at() const { return started_at_; }

    const Limit* begin() const { return limits_; }
    const Limit* end() const { return limits_ + count_; }

    void* data = nullptr;  // of whoever asks

  private:
    static void on_answer(Question* question);
    static void end_copy(RequestCheck* copy);
    RequestCheck* copy() const;
    BatchedLimit batched_limit(std::size_t index) const;
    bool together(std::size_t a, std::size_t b) const;
    bool precedes(std::size_t a, std::size_t b) const;
    void arrange();
    bool denied();
    TableLimit* add_memory_limit(std::size_t index, MemoryLimits* memory) const;
    void gather_memory(std::size_t end, MemoryLimits* memory) const;
    void copy_decisions(const MemoryLimits& memory);
    Progress look_at_memory();
    std::size_t next_position() const;
    void choose(std::size_t position);
    Progress ask_next();
    Progress take_answer();
    bool tell_memory();
    Progress reject_for_memory();
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
    void (*done_)(RequestCheck* group);
    Question question_;
    Gone gone_ = nullptr;
    CheckBatcher* asked_ = nullptr;  // whom the question is for
    redis::Slot slots_[kMaxLimits];
    std::uint8_t order_[kMaxLimits];  // in which limits are charged
    std::uint8_t asked_indices_[kMaxLimits];
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
