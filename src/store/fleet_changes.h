// Rates that are changed and clients that are reset while nginx runs: how the instances that share a Redis
// tell each other.
//
// The hash PREFIX rates has the rate of each zone whose rate was changed, and the sorted set PREFIX resets
// the clients of the last minute that are to be forgotten. One process of each instance reads both.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/policy.h"
#include "core/state_layout.h"
#include "memory/denials.h"
#include "memory/leader.h"
#include "memory/live_rate.h"
#include "memory/process.h"
#include "memory/table.h"
#include "redis/client.h"
#include "redis/router.h"
#include "store/periodic_task.h"

namespace rate_limit {

// What the processes of an instance share. Made in memory that is all zero.
class FleetChangesState {
  public:
    Leader& leader() { return leader_; }

    // When Redis last answered, or was first to be asked, by the process's clock; 0 if it never was.
    Micros heard() const { return heard_.load(std::memory_order_relaxed); }
    void set_heard(Micros now) { heard_.store(now, std::memory_order_relaxed); }

    // A process of this instance has itself changed a rate: what was asked before may not know of it.
    void note_change() { changes_.fetch_add(1, std::memory_order_release); }
    std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }

    // Until which moment of Redis' clock resets were followed; 0 if none were.
    std::uint64_t resets_until() const { return resets_until_.load(std::memory_order_relaxed); }
    void set_resets_until(std::uint64_t moment) { resets_until_.store(moment, std::memory_order_relaxed); }

  private:
    Leader leader_;
    std::atomic<Micros> heard_ = 0;
    std::atomic<std::uint64_t> changes_ = 0;
    std::atomic<std::uint64_t> resets_until_ = 0;
};

// A zone whose rate and clients other instances may change. All pointers must outlive the FleetChanges.
struct FleetZone {
    std::string name;
    std::string configured;  // its rate, as the configuration says it
    const Policy* policy = nullptr;
    StateLayout layout = {};
    LiveRate* live = nullptr;
    Table* table = nullptr;      // null if there is none
    Denials* denials = nullptr;  // null if there are none
    std::string refused = {};    // what Redis last had for it that is no rate, or too much
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

    // Null if memory is exhausted. Lifetimes are those of PeriodicTask; the state must outlive the
    // FleetChanges.
    static FleetChanges* make(FleetChangesState* state, std::vector<FleetZone> zones, const Options& options,
                              redis::Router* router, redis::Loop* loop, const Process& process);

  private:
    FleetChanges(FleetChangesState* state, std::vector<FleetZone> zones, const Options& options,
                 redis::Router* router, redis::Loop* loop, const Process& process);

    static void on_answer(void* self, redis::Error error, std::string_view reply);
    void on_timer() override;
    void run() override;
    redis::Slot slot() const;  // of the keys that it reads
    redis::Client* client() const;
    std::string question() const;
    bool follow(std::string_view reply);
    void follow_rate(FleetZone* zone, std::string_view text);
    void follow_reset(std::string_view member);

    FleetChangesState* state_;
    std::vector<FleetZone> zones_;
    Options options_;
    bool in_flight_ = false;             // a call is
    redis::Milliseconds denied_at_ = 0;  // when Redis last denied the call; 0 if it allowed the last one
    std::uint64_t changes_ = 0;          // FleetChangesState::changes() when the call was sent
};

// A command for whoever makes a change, and where it has to go. Its answer is a string.
struct FleetCommand {
    std::string command;
    redis::Slot slot;
};

// Changes the rate of a zone; with an empty `rate`, back to the configuration.
FleetCommand change_rate(std::string_view prefix, std::string_view zone, std::string_view rate);

// Deletes a client's key, or looks for it; the answer is "1", or "0" if there is none. Here and below a
// client's name is as short_name gives it.
FleetCommand delete_client(std::string_view prefix, std::string_view zone, Algorithm algorithm,
                           std::string_view client);
FleetCommand find_client(std::string_view prefix, std::string_view zone, Algorithm algorithm,
                         std::string_view client);

// Tells the other instances to forget a client.
FleetCommand announce_reset(std::string_view prefix, bool sharded, std::uint64_t instance,
                            std::string_view zone, std::string_view client);

// Forgets a client in memory; either may be null. Whether the table knew it.
bool forget_client(Table* table, Denials* denials, std::string_view client, const Process& process);

// Whether a table, which may be null, knows a client.
bool knows_client(Table* table, std::string_view client, const Process& process);

}  // namespace rate_limit
