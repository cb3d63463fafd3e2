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
    double pareto(double mean, double layout);  // of a layout above 1; the lower, the heavier its tail
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

// Draws one client's requests at a time.
class Clients {
  public:
    explicit Clients(const Scenario& scenario);

    // Adds those of a client, in the order of their times, all at the first instance. The same whatever was
    // drawn before.
    void draw(std::uint32_t client, std::vector<Arrival>* arrivals) const;

  private:
    void draw_ordinary(std::uint32_t client, Random* random, std::vector<Arrival>* arrivals) const;
    void draw_flood(std::uint32_t client, Random* random, std::vector<Arrival>* arrivals) const;
    double mean_interval(std::uint32_t client) const;
    double busyness(double at) const;

    Scenario scenario_;
    std::vector<double> parts_;  // of what those that are no flood send
    double limit_interval_;      // between two requests that make use of the limit
};

// In the order of their times. Those of one seed have the same clients and times, whatever the number of
// instances is.
std::vector<Arrival> make_arrivals(const Scenario& scenario);

// Lines of microseconds, client and instance, separated by spaces. False if that fails.
bool write_arrivals(const std::vector<Arrival>& arrivals, const std::string& file);

// Sets the scenario's numbers of clients and instances and its duration accordingly.
bool read_arrivals(const std::string& file, std::vector<Arrival>* arrivals, Scenario* scenario);

}  // namespace rate_limit::simulation
