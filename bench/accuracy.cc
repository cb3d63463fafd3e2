// Counts how often each algorithm, and a fleet with sync=, decides differently from an exact limiter, in
// virtual time.
//
//   accuracy decisions|rates|fleets|check [OPTION=VALUE ...]
//
// The options are those of bench/simulate.cc. Prints CSV. `check` prints nothing, and fails if the arithmetic
// of the other commands is wrong.
//
// decisions: each algorithm compared with sliding_log. Buckets hold as much as the limit.
//
//   admitted      requests that were admitted
//   over, under   how many more of them some clients got than by sliding_log, and how many fewer others got
//   own_*         compared with the right decision, given what the algorithm itself has admitted in the last
//                 period: wrongly admitted, wrongly rejected, and own_room, the mean remaining count at these
//   run_*         compared with the decision of a sliding_log that makes its own decisions
//   worst         the most requests of one client that were admitted in any period, in limits
//
// rates: algorithm= with count=all estimates a rate, which is compared with the number of all requests in the
// last period. There are rows for all requests, for those at a tenth of the limit or more, and for bands of
// the rate.
//
//   difference_percent   mean of |estimate - count| / count
//   bias_percent         mean of (estimate - count) / count
//   clients_over         clients that were above the limit at some time
//   missed               those of them that were never rejected
//   missed_by_percent    how far these were above the limit, at most
//   blamed               clients that were rejected, but never above the limit
//
// fleets: a fleet compared with one limiter of the same algorithm that knows all admissions of the fleet.
//
//   wrong                decisions that differ from this limiter
//   log_wrong_percent    decisions that differ from a sliding_log that knows all admissions of the fleet
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "simulation/arrivals.h"
#include "simulation/fleet.h"
#include "simulation/tally.h"

namespace rate_limit::simulation {
namespace {

double percent(std::uint64_t part, std::uint64_t whole) {
    return 100 * static_cast<double>(part) / static_cast<double>(std::max<std::uint64_t>(whole, 1));
}

// Decisions compared with the right ones.
struct Score {
    std::uint64_t requests = 0;
    std::uint64_t false_admits = 0;
    std::uint64_t false_rejects = 0;

    void add(bool admitted, bool right) {
        requests++;
        false_admits += admitted && !right ? 1 : 0;
        false_rejects += !admitted && right ? 1 : 0;
    }

    void add(const Score& other) {
        requests += other.requests;
        false_admits += other.false_admits;
        false_rejects += other.false_rejects;
    }

    std::uint64_t wrong() const { return false_admits + false_rejects; }
    double wrong_percent() const { return percent(wrong(), requests); }
};

Scenario with(const Scenario& scenario, Algorithm algorithm) {
    Scenario changed = scenario;
    changed.policy.algorithm = algorithm;
    const bool has_burst = algorithm == Algorithm::kLeakyBucket || algorithm == Algorithm::kGcra;
    changed.policy.burst = has_burst ? scenario.policy.rates.rates[0].count - 1 : 0;
    return changed;
}

// Calls `visit` with the requests of each client that sends any, as if it were the only client.
template <class Visit>
void each_client(const Scenario& scenario, const Visit& visit) {
    const Clients clients(scenario);
    std::vector<Arrival> arrivals;
    for (std::uint32_t i = 0; i < scenario.clients; i++) {
        arrivals.clear();
        clients.draw(i, &arrivals);
        for (Arrival& arrival : arrivals) {
            arrival.client = 0;
        }
        if (!arrivals.empty()) {
            visit(arrivals);
        }
    }
}

Scenario for_one_client(const Scenario& scenario) {
    Scenario one = scenario;
    one.clients = 1;
    return one;
}

// DECISIONS

std::vector<bool> decide_all(const Scenario& one, const std::vector<Arrival>& arrivals) {
    Exact exact(one);
    std::vector<bool> admitted;
    admitted.reserve(arrivals.size());
    for (const Arrival& arrival : arrivals) {
        admitted.push_back(exact.admits(arrival));
    }
    return admitted;
}

struct Decisions {
    Score own;
    Score run;
    std::uint64_t room = 0;  // sum of the remaining count at wrong rejections
    std::uint64_t admitted = 0;
    std::uint64_t over = 0;
    std::uint64_t under = 0;
    std::uint64_t worst = 0;

    void add(const Scenario& one, const std::vector<Arrival>& arrivals, const std::vector<bool>& by_log) {
        const std::vector<bool> decided = decide_all(one, arrivals);
        Exact log(with(one, Algorithm::kSlidingLog));
        Tally tally(one);
        for (std::size_t i = 0; i < arrivals.size(); i++) {
            const Decision right = log.judge(arrivals[i], decided[i]);
            own.add(decided[i], right.allowed);
            room += right.allowed && !decided[i] ? right.remaining + 1 : 0;
            run.add(decided[i], by_log[i]);
            if (decided[i]) {
                tally.add(arrivals[i]);
            }
        }
        const auto exact = static_cast<std::uint64_t>(std::count(by_log.begin(), by_log.end(), true));
        admitted += tally.total();
        over += tally.total() - std::min(tally.total(), exact);
        under += exact - std::min(tally.total(), exact);
        worst = std::max(worst, tally.worst_window());
    }
};

using AllDecisions = std::array<Decisions, kAlgorithms>;

AllDecisions decide_by_all(const Scenario& scenario) {
    AllDecisions all;
    each_client(scenario, [&](const std::vector<Arrival>& arrivals) {
        const Scenario one = for_one_client(scenario);
        const std::vector<bool> by_log = decide_all(with(one, Algorithm::kSlidingLog), arrivals);
        for (unsigned i = 0; i < kAlgorithms; i++) {
            all[i].add(with(one, static_cast<Algorithm>(i)), arrivals, by_log);
        }
    });
    return all;
}

int print_decisions(const Options& options) {
    const Scenario& scenario = options.scenario;
    const AllDecisions all = decide_by_all(scenario);
    const auto log = static_cast<std::size_t>(Algorithm::kSlidingLog);
    std::puts(
        "algorithm,requests,admitted,over,under,over_percent,under_percent,own_false_admits,own_false_"
        "rejects,"
        "own_wrong_percent,own_room,run_false_admits,run_false_rejects,run_wrong_percent,worst");
    for (unsigned i = 0; i < kAlgorithms; i++) {
        const Decisions& of = all[i];
        std::printf("%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.4f,%.4f,%" PRIu64 ",%" PRIu64
                    ",%.4f,%.2f,%" PRIu64 ",%" PRIu64 ",%.4f,%.3f\n",
                    algorithm_name(static_cast<Algorithm>(i)), of.own.requests, of.admitted, of.over,
                    of.under, percent(of.over, all[log].admitted), percent(of.under, all[log].admitted),
                    of.own.false_admits, of.own.false_rejects, of.own.wrong_percent(),
                    percent(of.room, of.own.false_rejects) / 100, of.run.false_admits, of.run.false_rejects,
                    of.run.wrong_percent(),
                    static_cast<double>(of.worst) / scenario.policy.rates.rates[0].count);
    }
    return 0;
}

// RATES

// Counts the requests of a client in the period up to each request, including that request.
class Counter {
  public:
    Counter(const std::vector<Arrival>& arrivals, Micros period) : arrivals_(arrivals), period_(period) {}

    // The requests must be in the order of their times.
    std::uint64_t up_to(std::size_t request) {
        while (arrivals_[first_].at <= arrivals_[request].at - period_) {
            first_++;
        }
        return request - first_ + 1;
    }

  private:
    const std::vector<Arrival>& arrivals_;
    Micros period_;
    std::size_t first_ = 0;
};

// The rate that a decision reports, including the request.
double estimate_of(const Decision& decision) {
    return decision.allowed
               ? static_cast<double>(decision.limit - decision.remaining)
               : static_cast<double>(decision.limit) + static_cast<double>(decision.excess_milli) / 1000;
}

// Requests while the rate was in the band from `from` limits to the next band.
struct Band {
    double from;
    Score score = {};
    double difference = 0;  // sum of |estimate - count| / count
    double bias = 0;        // sum of (estimate - count) / count

    void add(const Band& other) {
        score.add(other.score);
        difference += other.difference;
        bias += other.bias;
    }
};

struct Rates {
    std::array<Band, 6> bands = {{{0}, {0.1}, {0.5}, {0.9}, {1.1}, {2}}};
    std::uint64_t clients = 0;
    std::uint64_t over = 0;
    std::uint64_t missed = 0;
    std::uint64_t missed_by = 0;  // the largest number of requests beyond the limit
    std::uint64_t blamed = 0;

    void add(const Scenario& one, const std::vector<Arrival>& arrivals) {
        const Rate& rate = one.policy.rates.rates[0];
        Exact algorithm(one);
        Counter counter(arrivals, rate.period);
        std::uint64_t most = 0;
        bool rejected = false;
        for (std::size_t i = 0; i < arrivals.size(); i++) {
            const std::uint64_t count = counter.up_to(i);
            const Decision decision = algorithm.decide(arrivals[i]);
            const double error = estimate_of(decision) / static_cast<double>(count) - 1;
            Band& band = band_of(static_cast<double>(count) / rate.count);
            band.score.add(decision.allowed, count <= rate.count);
            band.difference += std::abs(error);
            band.bias += error;
            most = std::max(most, count);
            rejected |= !decision.allowed;
        }
        add_client(most, rejected, rate.count);
    }

    Band sum_from(double rate) const {
        Band sum = {rate};
        for (const Band& band : bands) {
            if (band.from >= rate) {
                sum.add(band);
            }
        }
        return sum;
    }

  private:
    Band& band_of(double rate) {
        return *std::find_if(bands.rbegin(), bands.rend(),
                             [rate](const Band& band) { return rate >= band.from; });
    }

    void add_client(std::uint64_t most, bool rejected, std::uint64_t limit) {
        clients++;
        over += most > limit ? 1 : 0;
        blamed += rejected && most <= limit ? 1 : 0;
        if (!rejected && most > limit) {
            missed++;
            missed_by = std::max(missed_by, most - limit);
        }
    }
};

Scenario counting_all(const Scenario& scenario, Algorithm algorithm) {
    Scenario changed = with(scenario, algorithm);
    changed.policy.count_all = true;
    return changed;
}

void print_band(const char* name, const Rates& rates, const Band& band, std::uint64_t limit) {
    const std::uint64_t all = rates.sum_from(0).score.requests;
    const auto requests = static_cast<double>(std::max<std::uint64_t>(band.score.requests, 1));
    std::printf("%s,%" PRIu64 ",%.4f,%" PRIu64 ",%" PRIu64 ",%.5f,%.3f,%.3f,%" PRIu64 ",%" PRIu64 ",%" PRIu64
                ",%.2f,%" PRIu64 "\n",
                name, band.score.requests, percent(band.score.requests, all), band.score.false_admits,
                band.score.false_rejects, band.score.wrong_percent(), 100 * band.difference / requests,
                100 * band.bias / requests, rates.clients, rates.over, rates.missed,
                percent(rates.missed_by, limit), rates.blamed);
}

int print_rates(const Options& options) {
    const Scenario counting = counting_all(options.scenario, options.scenario.policy.algorithm);
    if (is_bucket(counting.policy.algorithm)) {
        std::fprintf(stderr, "accuracy: %s estimates no rate\n", algorithm_name(counting.policy.algorithm));
        return 2;
    }
    const Scenario one = for_one_client(counting);
    Rates rates;
    each_client(counting, [&](const std::vector<Arrival>& arrivals) { rates.add(one, arrivals); });
    std::puts(
        "rate,requests,requests_percent,false_admits,false_rejects,wrong_percent,difference_percent,bias_"
        "percent,"
        "clients,clients_over,missed,missed_by_percent,blamed");
    const std::uint64_t limit = counting.policy.rates.rates[0].count;
    print_band("all", rates, rates.sum_from(0), limit);
    print_band("a tenth of the limit or more", rates, rates.sum_from(0.1), limit);
    for (std::size_t i = 0; i < rates.bands.size(); i++) {
        char name[32];
        const bool last = i + 1 == rates.bands.size();
        std::snprintf(name, sizeof(name), last ? "%g or more" : "%g to %g", rates.bands[i].from,
                      last ? 0 : rates.bands[i + 1].from);
        print_band(name, rates, rates.bands[i], limit);
    }
    return 0;
}

// FLEETS

// One of the algorithms with the same arithmetic.
constexpr Algorithm kInFleets[] = {Algorithm::kTokenBucket, Algorithm::kFixedWindow,
                                   Algorithm::kSlidingWindow, Algorithm::kSlidingBuckets};

Tally tally_exact(const Scenario& scenario, const std::vector<Arrival>& arrivals) {
    Exact exact(scenario);
    Tally tally(scenario);
    for (const Arrival& arrival : arrivals) {
        if (exact.admits(arrival)) {
            tally.add(arrival);
        }
    }
    return tally;
}

bool print_fleet(const Scenario& scenario, const std::vector<Arrival>& arrivals, const Tally& exact) {
    Scenario knowing = scenario;
    knowing.policy.debt = true;
    Exact judge(knowing);
    Exact log(with(scenario, Algorithm::kSlidingLog));
    Fleet fleet(scenario);
    Tally tally(scenario);
    Score beside_same;
    Score beside_log;
    for (const Arrival& arrival : arrivals) {
        const bool admitted = fleet.admits(arrival);
        beside_same.add(admitted, judge.judge(arrival, admitted).allowed);
        beside_log.add(admitted, log.judge(arrival, admitted).allowed);
        if (admitted) {
            tally.add(arrival);
        }
    }
    const Difference difference(tally, exact, scenario.clients);
    const double limit = scenario.policy.rates.rates[0].count;
    std::printf("%s,%u,%g,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.4f,%.4f,%" PRIu64 ",%" PRIu64
                ",%.4f,%.4f,%.3f,%.3f\n",
                algorithm_name(scenario.policy.algorithm), scenario.instances,
                static_cast<double>(scenario.sync) / 1000, beside_same.requests, tally.total(), exact.total(),
                percent(difference.over, exact.total()), percent(difference.under, exact.total()),
                beside_same.false_admits, beside_same.false_rejects, beside_same.wrong_percent(),
                beside_log.wrong_percent(), static_cast<double>(tally.worst_window()) / limit,
                static_cast<double>(exact.worst_window()) / limit);
    std::fflush(stdout);
    return fleet.evictions() == 0;
}

int print_fleets(const Options& options) {
    std::puts(
        "algorithm,instances,sync_ms,requests,admitted,exact,over_percent,under_percent,false_admits,"
        "false_rejects,wrong_percent,log_wrong_percent,worst,exact_worst");
    for (const std::uint32_t instances : options.instances) {
        Scenario scenario = options.scenario;
        scenario.instances = instances;
        const std::vector<Arrival> arrivals = make_arrivals(scenario);
        for (const Algorithm algorithm : kInFleets) {
            const Tally exact = tally_exact(with(scenario, algorithm), arrivals);
            for (const Micros sync : options.syncs) {
                scenario.sync = sync;
                if (!print_fleet(with(scenario, algorithm), arrivals, exact)) {
                    std::fputs("accuracy: a table was too small\n", stderr);
                    return 1;
                }
            }
        }
    }
    return 0;
}

// CHECK

// Counts from the start for each request.
std::uint64_t count_slowly(const std::vector<Arrival>& arrivals, const std::vector<bool>& counts,
                           std::size_t request, Micros period) {
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < request; i++) {
        count += counts[i] && arrivals[i].at > arrivals[request].at - period ? 1 : 0;
    }
    return count;
}

// Returns true if sliding_log as the reference, and the counter of rates, agree with the slow count.
bool agree(const Scenario& one, const std::vector<Arrival>& arrivals) {
    const Rate& rate = one.policy.rates.rates[0];
    const std::vector<bool> decided = decide_all(one, arrivals);
    const std::vector<bool> all(arrivals.size(), true);
    Exact judge(with(one, Algorithm::kSlidingLog));
    Exact counting_log(counting_all(one, Algorithm::kSlidingLog));
    Counter counter(arrivals, rate.period);
    for (std::size_t i = 0; i < arrivals.size(); i++) {
        const bool right = count_slowly(arrivals, decided, i, rate.period) < rate.count;
        const std::uint64_t count = count_slowly(arrivals, all, i, rate.period) + 1;
        if (judge.judge(arrivals[i], decided[i]).allowed != right || counter.up_to(i) != count ||
            counting_log.admits(arrivals[i]) != (count <= rate.count)) {
            return false;
        }
    }
    return true;
}

int check(const Options& options) {
    const Decisions log = decide_by_all(options.scenario)[static_cast<std::size_t>(Algorithm::kSlidingLog)];
    if (log.own.requests == 0 || log.own.wrong() + log.run.wrong() != 0) {
        std::fputs("accuracy: sliding_log decides otherwise than itself\n", stderr);
        return 1;
    }
    bool valid = true;
    const Scenario one = for_one_client(options.scenario);
    each_client(options.scenario, [&](const std::vector<Arrival>& arrivals) {
        for (unsigned i = 0; i < kAlgorithms; i++) {
            valid = valid && agree(with(one, static_cast<Algorithm>(i)), arrivals);
        }
    });
    if (!valid) {
        std::fputs("accuracy: what is right differs from a count of all requests\n", stderr);
        return 1;
    }
    return 0;
}

struct Mode {
    const char* name;
    int (*run)(const Options&);
};

constexpr Mode kModes[] = {
    {"decisions", print_decisions}, {"rates", print_rates}, {"fleets", print_fleets}, {"check", check}};

}  // namespace
}  // namespace rate_limit::simulation

int main(int count, char** words) {
    using namespace rate_limit::simulation;
    const auto* const mode = std::find_if(std::begin(kModes), std::end(kModes), [&](const Mode& known) {
        return count > 1 && std::strcmp(known.name, words[1]) == 0;
    });
    Options options;
    const std::string wrong = mode == std::end(kModes) ? "say decisions, rates, fleets or check first"
                                                       : parse_options({words + 2, words + count}, &options);
    if (!wrong.empty()) {
        std::fprintf(stderr, "accuracy: %s\n%s", wrong.c_str(), kUsage);
        return 2;
    }
    return mode->run(options);
}
