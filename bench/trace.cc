// Decides one bursty trace by each algorithm, with the code of src/, and prints CSV.
//
//   trace decisions|remaining|waits
//
// decisions: a row for each second: how many requests each algorithm admitted, delayed and rejected.
// remaining: what sliding_window has left of 10r/m, by the second, after ten requests at second 30.
// waits: the times in seconds that a client is told under 10r/m by the last of ten requests at second 30
// (admitted_t), and by a rejection at second 32 (the other columns).
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <vector>

#include "algorithms/check.h"

namespace rate_limit {
namespace {

constexpr Micros kSecond = 1'000'000;
constexpr Micros kStart = 1'800'000'000 * kSecond;  // a multiple of all periods, so that windows begin here
constexpr unsigned kSeconds = 100;

// A client with its own state under one limit, in which a client may send `count` requests at once.
class Client {
  public:
    Client(Algorithm algorithm, std::uint64_t count, Micros period, std::uint64_t burst) {
        policy_.algorithm = algorithm;
        policy_.burst = takes<kTakesBurst>(algorithm) ? burst : 0;
        policy_.delay = takes<kTakesDelay>(algorithm) ? 0 : kNoDelay;
        policy_.rates.size = 1;
        policy_.rates.rates[0] = {count, period};
        layout_ = layout_of(policy_);
        state_.resize(words_of(layout_));
    }

    Decision send(Micros at) {
        Check check;
        const Decision decision = check.evaluate(policy_, layout_, state_.data(), kStart + at, 1);
        if (decision.allowed) {
            check.charge(state_.data());
        } else {
            check.refuse(state_.data());
        }
        return decision;
    }

    std::uint64_t remaining(Micros at) {
        Check check;
        return check.evaluate(policy_, layout_, state_.data(), kStart + at, 0).remaining;
    }

    Micros window() const { return window_of(policy_, policy_.rates.rates[0]); }

  private:
    Policy policy_;
    StateLayout layout_ = {};
    std::vector<std::uint64_t> state_;
};

// Requests in a second: few, a burst around the edge of a window of 20 seconds, twice the rate, none, a burst
// after a rest, and the rate itself.
unsigned offered(unsigned second) {
    if (second < 17) {
        return second % 2;
    }
    if (second < 23) {
        return 8;
    }
    if (second < 45) {
        return 2;
    }
    if (second < 65) {
        return 0;
    }
    return second == 65 ? 15 : second < 85 ? 1 : 0;
}

struct Second {
    unsigned admitted = 0;
    unsigned delayed = 0;
    unsigned rejected = 0;
};

std::vector<Second> decide(Algorithm algorithm) {
    Client client(algorithm, 20, 20 * kSecond, 9);
    std::vector<Second> seconds(kSeconds);
    for (unsigned second = 0; second < kSeconds; second++) {
        for (unsigned i = 0; i < offered(second); i++) {
            const Decision decision = client.send((second * kSecond) + (i * kSecond / offered(second)));
            seconds[second].rejected += decision.allowed ? 0 : 1;
            seconds[second].delayed += decision.allowed && decision.delay > 0 ? 1 : 0;
            seconds[second].admitted += decision.allowed && decision.delay == 0 ? 1 : 0;
        }
    }
    return seconds;
}

void print_decisions() {
    std::vector<std::vector<Second>> all;
    std::printf("second");
    for (unsigned i = 0; i < kAlgorithms; i++) {
        const char* name = kAlgorithmTraits[i].name.data();
        std::printf(",%s admitted,%s delayed,%s rejected", name, name, name);
        all.push_back(decide(static_cast<Algorithm>(i)));
    }
    std::printf("\n");
    for (unsigned second = 0; second < kSeconds; second++) {
        std::printf("%u", second);
        for (const std::vector<Second>& seconds : all) {
            const Second& one = seconds[second];
            std::printf(",%u,%u,%u", one.admitted, one.delayed, one.rejected);
        }
        std::printf("\n");
    }
}

constexpr std::uint64_t kCount = 10;
constexpr Micros kMinute = 60 * kSecond;

// Returns the decision on the last of ten requests at second 30.
Decision use_up(Client* client) {
    Decision decision = {};
    for (unsigned i = 0; i < kCount; i++) {
        decision = client->send(30 * kSecond);
    }
    return decision;
}

void print_remaining() {
    Client client(Algorithm::kSlidingWindow, kCount, kMinute, 0);
    use_up(&client);
    std::printf("second,remaining\n");
    for (unsigned second = 0; second <= 130; second++) {
        std::printf("%u,%" PRIu64 "\n", second, second < 30 ? kCount : client.remaining(second * kSecond));
    }
}

double in_seconds(Micros micros) { return static_cast<double>(micros) / kSecond; }

// `t` as src/request/headers.cc computes it.
Micros effective_window(const Client& client, const Decision& decision) {
    return std::min(decision.allowed ? decision.reset_after : decision.retry_after, client.window());
}

void print_waits() {
    std::printf("algorithm,admitted_t,retry_after,t,reset\n");
    for (unsigned i = 0; i < kAlgorithms; i++) {
        Client client(static_cast<Algorithm>(i), kCount, kMinute, kCount - 1);
        const Decision last = use_up(&client);
        const Decision decision = client.send(32 * kSecond);
        std::printf("%s,%.9g,%.9g,%.9g,%.9g\n", kAlgorithmTraits[i].name.data(),
                    in_seconds(effective_window(client, last)), in_seconds(decision.retry_after),
                    in_seconds(effective_window(client, decision)), in_seconds(decision.reset_after));
    }
}

}  // namespace
}  // namespace rate_limit

int main(int argc, char** argv) {
    const char* what = argc == 2 ? argv[1] : "";
    if (std::strcmp(what, "decisions") == 0) {
        rate_limit::print_decisions();
    } else if (std::strcmp(what, "remaining") == 0) {
        rate_limit::print_remaining();
    } else if (std::strcmp(what, "waits") == 0) {
        rate_limit::print_waits();
    } else {
        std::fprintf(stderr, "usage: trace decisions|remaining|waits\n");
        return 2;
    }
    return std::fflush(stdout) == 0 ? 0 : 1;
}
