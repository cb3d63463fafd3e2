// Draws the times of requests for each client, and mixes them.
#include "simulation/arrivals.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <memory>

namespace rate_limit::simulation {
namespace {

constexpr std::uint64_t kStreamOfInstances = 1U << 31;

struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

std::vector<double> parts_of_clients(const Scenario& scenario) {
    std::vector<double> parts(scenario.clients);
    double sum = 0;
    for (std::uint32_t i = 0; i < scenario.clients; i++) {
        parts[i] = std::pow(i + 1, -scenario.zipf);
        sum += parts[i];
    }
    for (double& part : parts) {
        part /= sum;
    }
    return parts;
}

// A client sends as a Poisson process while it is on; the times that it is on and off are exponential.
void draw_client(const Scenario& scenario, std::uint32_t client, double mean_interval,
                 std::vector<Arrival>* arrivals) {
    Random random(scenario.seed, client);
    const bool pauses = scenario.off != 0;
    const auto on = static_cast<double>(scenario.on);
    const auto off = static_cast<double>(scenario.off);
    const double interval = pauses ? mean_interval * on / (on + off) : mean_interval;
    const auto end = static_cast<double>(scenario.duration);
    double at = 0;
    double pause_at = pauses ? random.exponential(on) : end;
    if (pauses && random.uniform() * (on + off) > on) {
        pause_at = 0;
    }
    for (;;) {
        at += random.exponential(interval);
        while (at >= pause_at && pause_at < end) {
            at = pause_at + random.exponential(off);
            pause_at = at + random.exponential(on);
            at += random.exponential(interval);
        }
        if (at >= end) {
            return;
        }
        arrivals->push_back({static_cast<Micros>(at), client, 0});
    }
}

}  // namespace

Random::Random(std::uint64_t seed, std::uint64_t stream) {
    std::seed_seq sequence{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(stream)};
    engine_.seed(sequence);
}

double Random::exponential(double mean) { return -mean * std::log(1 - uniform()); }

std::vector<Arrival> make_arrivals(const Scenario& scenario) {
    const std::vector<double> parts = parts_of_clients(scenario);
    const Rate& rate = scenario.policy.rates.rates[0];
    const double limit_interval = static_cast<double>(rate.period) / rate.count;
    std::vector<Arrival> arrivals;
    for (std::uint32_t i = 0; i < scenario.clients; i++) {
        draw_client(scenario, i, limit_interval / (scenario.load * scenario.clients * parts[i]), &arrivals);
    }
    std::sort(arrivals.begin(), arrivals.end(),
              [](const Arrival& a, const Arrival& b) { return a.at < b.at; });
    Random random(scenario.seed, kStreamOfInstances);
    for (Arrival& arrival : arrivals) {
        arrival.instance =
            scenario.sticky ? arrival.client % scenario.instances : random.below(scenario.instances);
    }
    return arrivals;
}

bool write_arrivals(const std::vector<Arrival>& arrivals, const std::string& name) {
    const File file(std::fopen(name.c_str(), "w"));
    if (file == nullptr) {
        return false;
    }
    for (const Arrival& arrival : arrivals) {
        std::fprintf(file.get(), "%" PRId64 " %u %u\n", arrival.at, arrival.client, arrival.instance);
    }
    return std::fflush(file.get()) == 0;
}

bool read_arrivals(const std::string& name, std::vector<Arrival>* arrivals, Scenario* scenario) {
    const File file(std::fopen(name.c_str(), "r"));
    if (file == nullptr) {
        return false;
    }
    Arrival arrival = {};
    scenario->clients = scenario->instances = 1;
    while (std::fscanf(file.get(), "%" SCNd64 " %u %u", &arrival.at, &arrival.client, &arrival.instance) ==
           3) {
        scenario->clients = std::max(scenario->clients, arrival.client + 1);
        scenario->instances = std::max(scenario->instances, arrival.instance + 1);
        scenario->duration = arrival.at + 1;
        arrivals->push_back(arrival);
    }
    return std::feof(file.get()) != 0 && !arrivals->empty() &&
           std::is_sorted(arrivals->begin(), arrivals->end(),
                          [](const Arrival& a, const Arrival& b) { return a.at < b.at; });
}

}  // namespace rate_limit::simulation
