// Counts the admitted requests of clients.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "algorithms/check.h"
#include "simulation/arrivals.h"
#include "simulation/scenario.h"

namespace rate_limit::simulation {

// An exact limiter: one shared state, without delay.
class Exact {
  public:
    explicit Exact(const Scenario& scenario);

    // Requests must come in the order of their times.
    bool admits(const Arrival& arrival) { return decide(arrival).allowed; }
    Decision decide(const Arrival& arrival);

    // Returns the exact limiter's decision on a request that another limiter has decided. Records the other's
    // decision.
    Decision judge(const Arrival& arrival, bool admitted);

  private:
    Policy policy_;
    StateLayout layout_;
    Micros start_;
    std::vector<std::uint64_t> states_;
};

// Admitted requests by client since the warm-up, and the most of a client in any window of the rate's period,
// including the warm-up.
class Tally {
  public:
    explicit Tally(const Scenario& scenario);

    void add(const Arrival& arrival);

    std::uint64_t total() const;
    std::uint64_t of(std::uint32_t client) const { return counts_[client]; }
    std::uint64_t worst_window() const { return worst_; }

    // Of all clients, by periods of the rate since the start.
    const std::vector<std::uint64_t>& periods() const { return periods_; }

  private:
    Micros warm_up_;
    Micros period_;
    std::vector<std::uint64_t> counts_;
    std::vector<std::deque<Micros>> recent_;
    std::vector<std::uint64_t> periods_;
    std::uint64_t worst_ = 0;
};

// How many more requests some clients got than by an exact limiter, and how many fewer others got.
struct Difference {
    Difference(const Tally& fleet, const Tally& exact, std::uint32_t clients);

    std::uint64_t over = 0;
    std::uint64_t under = 0;
};

// The most requests that the fleet admitted less than an exact limiter in one period, after the warm-up.
std::uint64_t most_under(const Scenario& scenario, const Tally& fleet, const Tally& exact);

}  // namespace rate_limit::simulation
