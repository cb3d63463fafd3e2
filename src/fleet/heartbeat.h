// Counts the instances that share a Redis: each sends a heartbeat every second.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/share.h"
#include "fleet/periodic_task.h"
#include "memory/leader.h"
#include "memory/process.h"
#include "redis/client.h"

namespace rate_limit {

// What the processes of an instance share. Created in memory that is all zero.
class Membership {
  public:
    // No other instance has this `id`.
    explicit Membership(std::uint64_t id) : id_(id), share_(0), back_at_(0) {}

    std::uint64_t id() const { return id_; }

    // This instance's share of a limit, by the last reply; the whole limit before the first reply.
    Share share() const {
        const std::uint64_t both = share_.load(std::memory_order_relaxed);
        return both == 0 ? Share()
                         : Share{static_cast<std::uint32_t>(both), static_cast<std::uint32_t>(both >> 32)};
    }
    void set_share(const Share& share) {
        share_.store(share.instances | std::uint64_t{share.rank} << 32, std::memory_order_relaxed);
    }

    // Since when Redis replies to every heartbeat, by the process's clock: kForever while it does not, 0 if
    // it always did.
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
    std::atomic<std::uint64_t>
        share_;  // the number of instances in the low half, the rank of this one in the high half
    std::atomic<Micros> back_at_;
    Leader leader_;
};

// Tells Redis every second that this instance is alive, and reads how many instances are. The Leader is that
// of the Membership.
class Heartbeat final : public PeriodicTask {
  public:
    static constexpr redis::Milliseconds kEvery = 1000;

    // The first heartbeat is `after` milliseconds from now. Lifetimes are those of PeriodicTask; the
    // Membership must outlive the Heartbeat.
    static Heartbeat* make(Membership* membership, std::string_view prefix, redis::Router* router,
                           redis::Loop* loop, const Process& process, redis::Milliseconds after = 0);

  private:
    Heartbeat(Membership* membership, std::string_view prefix, redis::Router* router, redis::Loop* loop,
              const Process& process);

    static void on_answer(void* self, redis::Error error, std::string_view reply);
    void on_answer(redis::Error error, std::string_view reply);
    void run() override;

    Membership* membership_;
    std::string key_;
    redis::HashSlot slot_;    // of the key
    bool in_flight_ = false;  // a call is
    unsigned calls_ = 0;
    unsigned fewer_ = 0;  // replies in a row that named fewer instances than are known
};

}  // namespace rate_limit
