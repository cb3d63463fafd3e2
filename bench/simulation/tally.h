// Counts what clients were admitted.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/check.h"
#include "simulation/arrivals.h"
#include "simulation/scenario.h"

namespace rate_limit::simulation {

// One shared state, no delay: what a limiter admits that knows of all requests at once.
class Exact {
  public:
    explicit Exact(const Scenario& scenario);

    // Requests come in the order of their times.
    bool admits(const Arrival& arrival) { return decide(arrival).allowed; }
    Decision decide(const Arrival& arrival);

    // What it would decide of a request that another has decided, whose decision is what it remembers.
    Decision judge(const Arrival& arrival, bool admitted);

  private:
    Policy policy_;
    StateLayout layout_;
    Micros start_;
    std::vector<std::uint64_t> states_;
};

// What was admitted, by client, from the warm-up on, and the most that one was in any window of the rate's
// period, the warm-up included.
class Tally {
  public:
    explicit Tally(const Scenario& scenario);

    void add(const Arrival& arrival);

    std::uint64_t total() const;
    std::uint64_t of(std::uint32_t client) const { return counts_[client]; }
    std::uint64_t worst_window() const { return worst_; }

  private:
    Micros warm_up_;
    Micros period_;
    std::vector<std::uint64_t> counts_;
    std::vector<std::deque<Micros>> recent_;
    std::uint64_t worst_ = 0;
};

// By how much clients were admitted more than by an exact limiter, and others less.
struct Difference {
    Difference(const Tally& fleet, const Tally& exact, std::uint32_t clients);

    std::uint64_t over = 0;
    std::uint64_t under = 0;
};

}  // namespace rate_limit::simulation
