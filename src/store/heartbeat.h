// How many instances share a Redis, as each of them knows from what all say there every second.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/share.h"
#include "memory/leader.h"
#include "memory/process.h"
#include "redis/client.h"
#include "redis/loop.h"
#include "redis/router.h"

namespace rate_limit {

// What the processes of an instance share. Made in memory that is all zero.
class Membership {
  public:
    // `id` is of no other instance.
    explicit Membership(std::uint64_t id) : id_(id), share_(0), back_at_(0) {}

    std::uint64_t id() const { return id_; }

    // The part of a rate that is this instance's, by what was last heard; the whole if nothing was.
    Share share() const {
        const std::uint64_t both = share_.load(std::memory_order_relaxed);
        return both == 0 ? Share()
                         : Share{static_cast<std::uint32_t>(both), static_cast<std::uint32_t>(both >> 32)};
    }
    void set_share(const Share& share) {
        share_.store(share.instances | std::uint64_t{share.rank} << 32, std::memory_order_relaxed);
    }

    // Since when Redis has answered each time, by the process's clock: kForever while it does not, 0 if it
    // always has.
    Micros back_at() const { return back_at_.load(std::memory_order_relaxed); }
    void set_away() { back_at_.store(kForever, std::memory_order_relaxed); }
    void set_answering(Micros now) {
        if (back_at() == kForever) {
            back_at_.store(now, std::memory_order_relaxed);
        }
    }

    Leader& leader() { return leader_; }

  private:
    std::uint64_t id_;
    std::atomic<std::uint64_t> share_;  // how many there are, and above that which of them this is
    std::atomic<Micros> back_at_;
    Leader leader_;
};

// Speaks for an instance. Of the processes that share a membership, one at a time does.
class Heartbeat {
  public:
    static constexpr redis::Milliseconds kEvery = 1000;

    // Speaks first after so long. All must outlive this, but for the router once stop() was called. Null if
    // there is no memory.
    static Heartbeat* make(Membership* membership, std::string_view prefix, redis::Router* router,
                           redis::Loop* loop, const Process& process, redis::Milliseconds after = 0);
    ~Heartbeat();
    Heartbeat(const Heartbeat&) = delete;
    Heartbeat& operator=(const Heartbeat&) = delete;

    // The process is about to end: leaves it to others.
    void end();

    // Says nothing more. What was said may still be answered.
    void stop();

  private:
    Heartbeat(Membership* membership, std::string_view prefix, redis::Router* router, const Process& process);

    static void on_answer(void* self, redis::Error error, std::string_view reply);
    void on_timer();

    Membership* membership_;
    std::string key_;
    redis::Router* router_;
    const Process* process_;
    redis::Alarm* timer_ = nullptr;
    bool asking_ = false;
    unsigned asked_ = 0;  // questions
    unsigned fewer_ = 0;  // answers in a row that named fewer instances than are known
};

}  // namespace rate_limit
