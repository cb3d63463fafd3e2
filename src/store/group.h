// A request's limits, wherever their state is: decided together, all or nothing, though Redis answers later.
//
// Memory is checked first and charged last, when every Redis has admitted; what a Redis was charged is given
// back if another limit then rejects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "store/denials.h"
#include "store/instances.h"
#include "store/memory.h"
#include "store/remote.h"
#include "store/source.h"

namespace rate_limit {

// What a zone does while its Redis cannot be asked.
enum class OnError : std::uint8_t { kOpen, kClosed, kLocal };

// One of a request's limits. Everything that it points to must live until the group is decided or forgotten.
struct GroupLimit {
    std::string_view zone;    // its name
    std::string_view client;  // the client's
    const Policy* policy;
    const Shape* shape;
    std::uint32_t cost;
    Table* table;                  // null if the zone has none: it is in Redis, and not on_error=local
    Remote* remote;                // null if the zone is in memory
    const Membership* membership;  // of the instances that share the Redis; null if they are not counted
    Denials* denials;              // null if denials are not remembered
    Micros deny_for;               // at most
    OnError on_error;
    Source source;              // the answer: who decided
    Decision decision;          // and what
    Reason reason = kNoReason;  // why not whom the zone asks first
    bool is_short = false;      // the client's name is as short_name gives it
};

enum class Progress : std::uint8_t {
    kWaiting,  // `done` will be called
    kAdmitted,
    kRejected,
    kRefused,  // a limit could not be decided and must not be left out
};

struct MemoryLimits;

class Group {
  public:
    // `limits`, `room` for as many, and the group itself must live until it is decided or forgotten; they are
    // no more than kMaxLimits. `wall` reads the time of day.
    Group(GroupLimit* limits, RemoteLimit* room, std::size_t count, const Host& host, Micros (*wall)(),
          void (*done)(Group* group));

    // Starts to decide. `done` is called only after kWaiting, once progress() is something else. `undenied`
    // if it is known already that no denial is remembered.
    Progress start(bool undenied = false);

    // The request has gone.
    void forget();

    Progress progress() const { return progress_; }

    // Why a Redis could not be asked; kNone if all could.
    redis::Error error() const { return error_; }

    // When it was decided: by Redis' clock, if Redis did.
    Micros decided_at() const { return decided_at_ != 0 ? decided_at_ : wall_(); }

    // When it was started, by the host's clock.
    Micros started_at() const { return started_at_; }

    void* data = nullptr;  // of whoever asks

  private:
    static void on_answer(Question* question);
    RemoteLimit remote_limit(std::size_t index) const;
    bool together(std::size_t a, std::size_t b) const;
    bool denied();
    void gather_memory(bool fallback, MemoryLimits* memory) const;
    void copy_decisions(const MemoryLimits& memory);
    Progress check_memory_first();
    bool choose_next();
    Progress ask_next();
    Progress take_answer();
    bool must_refuse();
    Progress check_memory_last();
    Progress reject();
    void note_rejection();
    bool is_refundable(std::size_t index) const;
    void give_back();

    GroupLimit* limits_;
    std::size_t count_;
    const Host& host_;
    Micros (*wall_)();
    void (*done_)(Group* group);
    Question question_;
    Remote* asked_ = nullptr;  // whom the question is for
    redis::Slot slots_[kMaxLimits];
    std::uint8_t asked_indices_[kMaxLimits];
    Progress progress_ = Progress::kWaiting;
    redis::Error error_ = redis::Error::kNone;
    Micros decided_at_ = 0;               // 0 while nobody has
    Micros started_at_ = 0;               // by the host's clock
    bool waited_ = false;                 // for an answer
    bool tried_[kMaxLimits] = {};         // its Redis was asked, or could not be
    Micros charged_at_[kMaxLimits] = {};  // by the host's clock; 0 if it was not, or no longer is
};

}  // namespace rate_limit
