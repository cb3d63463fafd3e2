// Instances of nginx that count locally and exchange counts with Redis, in virtual time.
//
// Each instance has a real table with unsent counts and a real SyncLedger. It makes calls like
// fleet/sync_sender.h: at intervals, one at a time, of at most kClientsInCall clients. The durations of calls
// are random.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "fleet/sync_ledger.h"
#include "memory/table.h"
#include "simulation/arrivals.h"
#include "simulation/ledger.h"
#include "simulation/scenario.h"

namespace rate_limit::simulation {

class Fleet {
  public:
    explicit Fleet(const Scenario& scenario);
    ~Fleet();
    Fleet(const Fleet&) = delete;
    Fleet& operator=(const Fleet&) = delete;

    // Decides a request after all earlier events. Requests must come in the order of their times.
    bool admits(const Arrival& arrival);

    std::uint64_t calls() const { return calls_; }
    std::uint64_t charges() const { return charges_; }  // clients in these calls
    std::uint64_t overshoot() const;
    std::uint64_t evictions() const;

  private:
    struct Instance;

    // A call in flight.
    struct Trip {
        std::uint32_t instance = 0;
        unsigned events = 0;  // pending events of this call
        SyncBatch batch;
        Answer answer;
    };

    enum class Kind : std::uint8_t {
        kRound,    // an instance sends its counts
        kArrive,   // a call reaches Redis
        kAnswer,   // the answer reaches the instance
        kTimeout,  // the call times out
    };

    struct Event {
        Micros at;
        std::uint64_t number;  // events of the same time happen in the order of their creation
        Kind kind;
        std::uint32_t subject;  // an instance for kRound, otherwise a trip

        bool operator>(const Event& other) const {
            return at != other.at ? at > other.at : number > other.number;
        }
    };

    void add(Micros at, Kind kind, std::uint32_t subject);
    void happen(const Event& event);
    void make_up_rounds(Instance* instance, Micros now);
    void plan_round(std::uint32_t instance, Micros now);
    void send(std::uint32_t instance, Micros now);
    void travel(std::uint32_t trip, Micros now);
    void take_in(const Trip& trip);
    std::uint32_t new_trip();
    Micros one_way();

    Scenario scenario_;
    StateLayout layout_;
    Process process_;
    Random random_;
    Ledger ledger_;
    std::vector<std::string> names_;
    std::vector<std::unique_ptr<Instance>> instances_;
    std::vector<std::unique_ptr<Trip>> trips_;
    std::vector<std::uint32_t> free_trips_;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::uint64_t event_count_ = 0;
    std::uint64_t calls_ = 0;
    std::uint64_t charges_ = 0;
};

}  // namespace rate_limit::simulation
