// Follows the rates that other instances change and the clients that they reset while nginx runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/fleet_zone.h"
#include "fleet/periodic_task.h"
#include "memory/leader.h"
#include "memory/process.h"
#include "redis/client.h"
#include "redis/router.h"

namespace rate_limit {

// What the processes of an instance share. Created in memory that is all zero.
class FleetChangesState {
  public:
    Leader& leader() { return leader_; }

    // When Redis last replied or, before its first reply, when a FleetChanges was first made, by the
    // process's clock; 0 before both.
    Micros heard() const { return heard_.load(std::memory_order_relaxed); }
    void set_heard(Micros now) { heard_.store(now, std::memory_order_relaxed); }

    // Counts the changes of a rate by this instance. A reply to a call that was sent before the change is
    // outdated.
    void note_change() { changes_.fetch_add(1, std::memory_order_release); }
    std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }

    // The moment of the last reset that was followed, in microseconds of Redis's clock; 0 before the first
    // reply.
    std::uint64_t resets_until() const { return resets_until_.load(std::memory_order_relaxed); }
    void set_resets_until(std::uint64_t moment) { resets_until_.store(moment, std::memory_order_relaxed); }

  private:
    Leader leader_;
    std::atomic<Micros> heard_ = 0;
    std::atomic<std::uint64_t> changes_ = 0;
    std::atomic<std::uint64_t> resets_until_ = 0;
};

// Reads from Redis every half second which rates were changed and which clients were reset, and applies both
// to this instance. The Leader is that of the FleetChangesState.
class FleetChanges final : public PeriodicTask {
  public:
    static constexpr redis::Milliseconds kEvery = 500;

    struct Options {
        std::string prefix;                       // of every key
        std::uint64_t instance = 0;               // id of this instance
        redis::Milliseconds after = 0;            // until the first run
        void (*each_time)(void* self) = nullptr;  // called by the timer in every process; may be null
        void* self = nullptr;
    };

    // Lifetimes are those of PeriodicTask; the state must outlive the FleetChanges.
    static FleetChanges* make(FleetChangesState* state, std::vector<FleetZone> zones, const Options& options,
                              redis::Router* router, redis::Loop* loop, const Process& process);

  private:
    FleetChanges(FleetChangesState* state, std::vector<FleetZone> zones, const Options& options,
                 redis::Router* router, redis::Loop* loop, const Process& process);

    static void on_answer(void* self, redis::Error error, std::string_view reply);
    void on_answer(redis::Error error, std::string_view reply);
    void on_timer() override;
    void run() override;
    redis::Client* client() const;
    void follow(std::string_view reply);
    static const char* objection(const FleetZone& zone, std::string_view text, RateList* rates);
    void follow_rate(const FleetZone& zone, std::string_view text, std::string* refused);
    void follow_reset(std::string_view member);

    FleetChangesState* state_;
    std::vector<FleetZone> zones_;
    std::vector<std::string> refused_;  // for each zone, the last rate in Redis that it could not use
    Options options_;
    bool in_flight_ = false;             // a call is
    redis::Milliseconds denied_at_ = 0;  // when Redis last denied the call; 0 if it allowed the last one
    std::uint64_t changes_ = 0;          // FleetChangesState::changes() when the call was sent
};

}  // namespace rate_limit
