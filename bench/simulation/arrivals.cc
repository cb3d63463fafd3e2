// Draws the request times of each client, and merges them.
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

// Draws a duration with this mean: exponential, or with a heavy tail.
double draw_time(Random* random, double mean, double tail) {
    return tail == 0 ? random->exponential(mean) : random->pareto(mean, tail);
}

// Draws instances by their shares of the load.
class Instances {
  public:
    explicit Instances(const Scenario& scenario) : count_(scenario.instances) {
        double sum = 0;
        for (std::uint32_t i = 0; i < count_; i++) {
            sum += std::pow(static_cast<double>(i + 1), -scenario.uneven);
            sums_.push_back(sum);
        }
    }

    std::uint32_t draw(Random* random) const {
        const auto found = std::upper_bound(sums_.begin(), sums_.end(), random->uniform() * sums_.back());
        return std::min(static_cast<std::uint32_t>(found - sums_.begin()), count_ - 1);
    }

  private:
    std::uint32_t count_;
    std::vector<double> sums_;  // of the shares up to each instance
};

}  // namespace

Random::Random(std::uint64_t seed, std::uint64_t stream) {
    std::seed_seq sequence{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(stream)};
    engine_.seed(sequence);
}

double Random::exponential(double mean) { return -mean * std::log(1 - uniform()); }

double Random::pareto(double mean, double shape) {
    return mean * (shape - 1) / shape * std::pow(1 - uniform(), -1 / shape);
}

Clients::Clients(const Scenario& scenario) : scenario_(scenario), parts_(scenario.clients - scenario.floods) {
    double sum = 0;
    for (std::size_t i = 0; i < parts_.size(); i++) {
        parts_[i] = std::pow(static_cast<double>(i + 1), -scenario.zipf);
        sum += parts_[i];
    }
    for (double& part : parts_) {
        part /= sum;
    }
    const Rate& rate = scenario.policy.rates.rates[0];
    limit_interval_ = static_cast<double>(rate.period) / rate.count;
}

double Clients::mean_interval(std::uint32_t client) const {
    if (scenario_.requests != 0) {
        return static_cast<double>(scenario_.duration) / (scenario_.requests * parts_[client]);
    }
    return limit_interval_ / (scenario_.load * static_cast<double>(parts_.size()) * parts_[client]);
}

void Clients::draw(std::uint32_t client, std::vector<Arrival>* arrivals) const {
    Random random(scenario_.seed, client);
    if (client < parts_.size()) {
        draw_ordinary(client, &random, arrivals);
    } else {
        draw_flood(client, &random, arrivals);
    }
}

// A Poisson process while the client is active.
void Clients::draw_ordinary(std::uint32_t client, Random* random, std::vector<Arrival>* arrivals) const {
    const bool pauses = scenario_.off != 0;
    const auto on = static_cast<double>(scenario_.on);
    const auto off = static_cast<double>(scenario_.off);
    const double busiest = mean_interval(client) / (1 + scenario_.swing);
    const double interval = pauses ? busiest * on / (on + off) : busiest;
    const auto end = static_cast<double>(scenario_.duration);
    double at = 0;
    double pause_at = pauses ? draw_time(random, on, scenario_.tail) : end;
    if (pauses && random->uniform() * (on + off) > on) {
        pause_at = 0;
    }
    for (;;) {
        at += random->exponential(interval);
        while (at >= pause_at && pause_at < end) {
            at = pause_at + draw_time(random, off, scenario_.tail);
            pause_at = at + draw_time(random, on, scenario_.tail);
            at += random->exponential(interval);
        }
        if (at >= end) {
            return;
        }
        if (scenario_.swing == 0 || random->uniform() * (1 + scenario_.swing) < busyness(at)) {
            arrivals->push_back({static_cast<Micros>(at), client, 0});
        }
    }
}

// Begins at a random time, lasts for about a tenth of the duration, and does not return.
void Clients::draw_flood(std::uint32_t client, Random* random, std::vector<Arrival>* arrivals) const {
    const auto duration = static_cast<double>(scenario_.duration);
    double at = random->uniform() * duration;
    const double end = std::min(duration, at + random->exponential(duration / 10));
    for (;;) {
        at += random->exponential(limit_interval_ / scenario_.flood);
        if (at >= end) {
            return;
        }
        arrivals->push_back({static_cast<Micros>(at), client, 0});
    }
}

// The activity at a time of the day, 1 on average: lowest at the start, highest in the middle.
double Clients::busyness(double at) const {
    constexpr double kCircle = 6.283185307179586;
    return 1 - scenario_.swing * std::cos(kCircle * at / static_cast<double>(scenario_.day));
}

std::vector<Arrival> make_arrivals(const Scenario& scenario) {
    const Clients clients(scenario);
    std::vector<Arrival> arrivals;
    for (std::uint32_t i = 0; i < scenario.clients; i++) {
        clients.draw(i, &arrivals);
    }
    std::sort(arrivals.begin(), arrivals.end(),
              [](const Arrival& a, const Arrival& b) { return a.at < b.at; });
    Random random(scenario.seed, kStreamOfInstances);
    const Instances instances(scenario);
    for (Arrival& arrival : arrivals) {
        if (scenario.sticky) {
            arrival.instance = arrival.client % scenario.instances;
        } else if (scenario.turn != 0) {
            arrival.instance = static_cast<std::uint32_t>(arrival.at / scenario.turn % scenario.instances);
        } else {
            arrival.instance = instances.draw(&random);
        }
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
