// The cost of a decision alone: each algorithm of src/core, without a table, a lock or a clock.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "client.h"

namespace rate_limit {
namespace {

// Rates, with the interval at which a client is just within all of them: its state is that of a client that
// uses nearly all of its quota.
struct Pace {
    const char* name;
    const char* rates;
    Micros interval;
};

constexpr Pace kPaces[] = {
    {"1_rate", "100r/m", 610'000},
    {"3_rates", "10r/s,100r/m,1000r/h", 3'700'000},
};

constexpr unsigned kWarmUp = 2000;  // requests, until every state has its full size

void must(bool good, const char* what) {
    if (!good) {
        std::fprintf(stderr, "check_bench: %s\n", what);
        std::abort();
    }
}

void bench_admitted(benchmark::State& state, Algorithm algorithm, const Pace& pace) {
    Client client(policy_of(algorithm, pace.rates));
    Micros now = kMidnight;
    for (unsigned i = 0; i < kWarmUp; i++) {
        must(client.request(now += pace.interval).allowed, "a request was rejected");
    }
    bool all = true;
    for (auto _ : state) {
        all = client.request(now += pace.interval).allowed && all;
    }
    must(all, "a request was rejected");
}

void bench_rejected(benchmark::State& state, Algorithm algorithm, const Pace& pace) {
    Client client(policy_of(algorithm, pace.rates));
    client.admitted(kMidnight, kWarmUp);
    bool any = false;
    for (auto _ : state) {
        any = client.request(kMidnight).allowed || any;
    }
    must(!any, "a request was admitted");
}

// Registers before main() of Google Benchmark.
const bool kRegistered = [] {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const Pace& pace : kPaces) {
            const std::string name = std::string("check/") + algorithm_name(algorithm) + "/" + pace.name;
            benchmark::RegisterBenchmark((name + "/admitted").c_str(), bench_admitted, algorithm, pace);
            benchmark::RegisterBenchmark((name + "/rejected").c_str(), bench_rejected, algorithm, pace);
        }
    }
    return true;
}();

}  // namespace
}  // namespace rate_limit
