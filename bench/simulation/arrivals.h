// The requests of a simulation: time, client and instance.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "simulation/scenario.h"

namespace rate_limit::simulation {

// Gives the same numbers on every machine, unlike the distributions of the standard library.
class Random {
  public:
    // Streams of one seed are independent of each other.
    Random(std::uint64_t seed, std::uint64_t stream);

    double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }  // from 0 to below 1
    double exponential(double mean);
    double pareto(double mean, double shape);  // shape above 1; the lower, the heavier the tail
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

// Draws the requests of one client at a time.
class Clients {
  public:
    explicit Clients(const Scenario& scenario);

    // Appends the requests of a client in the order of their times, all at the first instance. Independent of
    // earlier draws.
    void draw(std::uint32_t client, std::vector<Arrival>* arrivals) const;

  private:
    void draw_ordinary(std::uint32_t client, Random* random, std::vector<Arrival>* arrivals) const;
    void draw_flood(std::uint32_t client, Random* random, std::vector<Arrival>* arrivals) const;
    double mean_interval(std::uint32_t client) const;
    double busyness(double at) const;

    Scenario scenario_;
    std::vector<double> parts_;  // each client's share of the requests that are not floods
    double limit_interval_;      // between two requests at the rate of the limit
};

// Returns all requests in the order of their times. A seed determines clients and times, with any number of
// instances.
std::vector<Arrival> make_arrivals(const Scenario& scenario);

// Writes lines of microseconds, client and instance, separated by spaces. Returns false after an error.
bool write_arrivals(const std::vector<Arrival>& arrivals, const std::string& file);

// Also sets the scenario's duration and numbers of clients and instances.
bool read_arrivals(const std::string& file, std::vector<Arrival>* arrivals, Scenario* scenario);

}  // namespace rate_limit::simulation
