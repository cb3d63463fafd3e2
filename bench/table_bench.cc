// The cost of a check in a table: find the client, lock, decide, write; by one process, and beside another
// process that uses the same table. Also the cost of a lookup in the deny cache.
//
// Names are hashed as for every request. No clock is read: time advances by a microsecond per check.
#include <benchmark/benchmark.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "client.h"
#include "memory/denials.h"
#include "memory/table_check.h"

namespace rate_limit {
namespace {

constexpr HashKey kHashKey = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
constexpr std::size_t kManyClients = 100'000;
constexpr std::size_t kRoom = 16U << 20;  // bytes, more than twice the need of these clients
constexpr std::size_t kTurns = 1U << 20;  // random clients, drawn before the measurement
constexpr char kGenerous[] = "1000000000r/s";
constexpr char kStrict[] = "1r/h";

void must(bool good, const char* what) {
    if (!good) {
        std::fprintf(stderr, "table_bench: %s\n", what);
        std::abort();
    }
}

Process this_process() {
    return {static_cast<std::uint32_t>(getpid()),
            [](std::uint32_t process) { return kill(static_cast<pid_t>(process), 0) == 0 || errno == EPERM; },
            [] { sched_yield(); },
            [] {
                timespec time = {};
                clock_gettime(CLOCK_MONOTONIC, &time);
                return static_cast<Micros>(time.tv_sec) * kSecond + time.tv_nsec / 1000;
            }};
}

// Memory shared with forked processes: a table, and their messages.
class Shared {
  public:
    explicit Shared(const Policy& policy) : policy_(policy) {
        void* memory = mmap(nullptr, kRoom + 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        must(memory != MAP_FAILED, "there is no memory");
        signs_ = new (memory) Signs;
        table_ = Table::create(static_cast<char*>(memory) + 4096, kRoom, layout_of(policy_), kHashKey);
        must(table_ != nullptr, "the table does not fit");
    }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;
    ~Shared() { munmap(signs_, kRoom + 4096); }

    Verdict request(std::string_view client, Micros now, const Process& process) const {
        NameRoom room;
        TableLimit limit = memory_limit(table_, policy_, client, 1, &room);
        return check(&limit, 1, now, process);
    }

    struct Signs {
        std::atomic<bool> begun{false};
        std::atomic<bool> over{false};
    };
    Signs& signs() const { return *signs_; }

  private:
    Policy policy_;
    Signs* signs_;
    Table* table_;
};

// Names, and the order of their requests.
class Clients {
  public:
    explicit Clients(std::size_t count, unsigned first = 0) {
        for (std::size_t i = 0; i < count; i++) {
            names.push_back("client-" + std::to_string(100'000 + first + i));
        }
        std::mt19937_64 random(1);
        for (std::size_t i = 0; i < kTurns; i++) {
            turns_.push_back(static_cast<std::uint32_t>(random() % count));
        }
    }

    const std::string& next() { return names[turns_[turn_++ % kTurns]]; }

    std::vector<std::string> names;

  private:
    std::vector<std::uint32_t> turns_;
    std::size_t turn_ = 0;
};

// A process that makes requests until this object is destroyed.
class Neighbour {
  public:
    Neighbour(const Shared& shared, Clients clients) : shared_(shared) {
        const pid_t parent = getpid();
        pid_ = fork();
        must(pid_ >= 0, "fork");
        if (pid_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) {
                _exit(1);
            }
            const Process process = this_process();
            for (Micros now = kMidnight; !shared.signs().over.load(std::memory_order_relaxed); now++) {
                shared.request(clients.next(), now, process);
                shared.signs().begun.store(true, std::memory_order_relaxed);
            }
            _exit(0);
        }
        while (!shared.signs().begun.load()) {
            sched_yield();
        }
    }
    Neighbour(const Neighbour&) = delete;
    Neighbour& operator=(const Neighbour&) = delete;
    ~Neighbour() {
        shared_.signs().over.store(true);
        waitpid(pid_, nullptr, 0);
    }

  private:
    const Shared& shared_;
    pid_t pid_;
};

void measure(benchmark::State& state, const Shared& shared, Clients* clients, Verdict expected) {
    const Process process = this_process();
    Micros now = kMidnight + kSecond;
    std::uint64_t others = 0;
    for (auto _ : state) {
        others += shared.request(clients->next(), ++now, process) != expected ? 1 : 0;
    }
    must(others == 0, "a request was not decided as it should be");
}

void bench_admitted(benchmark::State& state, Algorithm algorithm, std::size_t count) {
    const Shared shared(policy_of(algorithm, kGenerous));
    Clients clients(count);
    for (const std::string& name : clients.names) {
        shared.request(name, kMidnight, this_process());
    }
    measure(state, shared, &clients, Verdict::kAdmitted);
}

void bench_rejected(benchmark::State& state, Algorithm algorithm, std::size_t count) {
    const Shared shared(policy_of(algorithm, kStrict));
    Clients clients(count);
    for (const std::string& name : clients.names) {
        must(shared.request(name, kMidnight, this_process()) == Verdict::kAdmitted, "no first request");
    }
    measure(state, shared, &clients, Verdict::kRejected);
}

// While another process makes requests of its own clients, or of the same.
void bench_beside(benchmark::State& state, std::size_t count, bool same) {
    const Shared shared(policy_of(Algorithm::kSlidingWindow, kGenerous));
    Clients clients(count);
    const Neighbour neighbour(shared, same ? clients : Clients(count, kManyClients));
    measure(state, shared, &clients, Verdict::kAdmitted);
}

// With 100,000 stored denials: a lookup of stored clients, or of others.
void bench_deny_cache(benchmark::State& state, bool remembered) {
    std::vector<char> room(kRoom + 64);
    void* memory = room.data();
    std::size_t size = room.size();
    must(std::align(64, kRoom, memory, size) != nullptr, "the cache does not fit");
    Denials* denials = Denials::create(memory, kRoom, kHashKey);
    const Policy policy = policy_of(Algorithm::kSlidingWindow, kStrict);
    Decision decision = {};
    decision.retry_after = kSecond;
    for (const std::string& name : Clients(kManyClients).names) {
        denials->remember(denials->hash(name), policy, 1, kMidnight, kMidnight, decision, kSecond);
    }
    Clients clients(kManyClients, remembered ? 0 : kManyClients);
    std::uint64_t found = 0;
    for (auto _ : state) {
        Micros time = 0;
        const std::uint64_t client = denials->hash(clients.next());
        found += denials->find(client, policy, 1, kMidnight, &decision, &time) ? 1 : 0;
    }
    state.counters["found"] = static_cast<double>(found) / static_cast<double>(state.iterations());
}

// Registers before main() of Google Benchmark.
const bool kRegistered = [] {
    const auto add = [](const std::string& name, auto... arguments) {
        return benchmark::RegisterBenchmark(("table/" + name).c_str(), arguments...);
    };
    for (const Algorithm algorithm : {Algorithm::kSlidingWindow, Algorithm::kLeakyBucket, Algorithm::kGcra}) {
        const std::string name = algorithm_name(algorithm);
        add(name + "/one_key/admitted", bench_admitted, algorithm, std::size_t{1});
        add(name + "/one_key/rejected", bench_rejected, algorithm, std::size_t{1});
        add(name + "/100000_keys/admitted", bench_admitted, algorithm, kManyClients);
        add(name + "/100000_keys/rejected", bench_rejected, algorithm, kManyClients);
    }
    add("2_processes/same_client", bench_beside, std::size_t{1}, true);
    add("2_processes/other_client", bench_beside, std::size_t{1}, false);
    add("2_processes/same_100000_keys", bench_beside, kManyClients, true);
    add("2_processes/other_100000_keys", bench_beside, kManyClients, false);
    add("deny_cache/remembered", bench_deny_cache, true);
    add("deny_cache/others", bench_deny_cache, false);
    return true;
}();

}  // namespace
}  // namespace rate_limit
