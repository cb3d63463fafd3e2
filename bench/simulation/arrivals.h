// When which client sends a request, and to which instance.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "simulation/scenario.h"

namespace rate_limit::simulation {

// The same numbers on every machine, which the distributions of the standard library do not promise.
class Random {
  public:
    // Streams of one seed are independent of each other.
    Random(std::uint64_t seed, std::uint64_t stream);

    double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }  // 0 to below 1
    double exponential(double mean);
    std::uint32_t below(std::uint32_t bound) {
        return static_cast<std::uint32_t>(uniform() * static_cast<double>(bound));
    }

  private:
    std::mt19937_64 engine_;
};

struct Arrival {
    Micros at;  // since the start
    std::uint32_t client;
    std::uint32_t instance;
};

// In the order of their times. Those of one seed have the same clients and times, whatever the number of
// instances is.
std::vector<Arrival> make_arrivals(const Scenario& scenario);

// Lines of microseconds, client and instance, separated by spaces. False if that fails.
bool write_arrivals(const std::vector<Arrival>& arrivals, const std::string& file);

// Sets the scenario's numbers of clients and instances and its duration accordingly.
bool read_arrivals(const std::string& file, std::vector<Arrival>* arrivals, Scenario* scenario);

}  // namespace rate_limit::simulation
