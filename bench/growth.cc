// The bytes and the CPU time that a client takes in shared memory, for any number of clients.
//
//   growth clients=N [checks=N] [rounds=N]
//
// Finds the smallest zone, in steps of a byte per client, that keeps all `clients` of a sliding_window limit.
// Then decides `checks` (500000) checks of random clients in each of `rounds` (5). Prints JSON:
//
//   clients
//   bytes_per_client         of this zone
//   cpu_us_per_check         for each round: to find the client, lock, decide and write. The time to make the
//                            client's name is subtracted
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "client.h"
#include "memory/table_check.h"

namespace rate_limit {
namespace {

constexpr HashKey kHashKey = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
constexpr std::uint64_t kLeastBytes = 31;  // per client, where the search begins
constexpr std::uint64_t kMostBytes = 256;
constexpr std::size_t kPage = 4096;

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "growth: %s\n", what.c_str());
    std::exit(1);
}

struct Options {
    std::uint64_t clients = 0;
    std::uint64_t checks = 500'000;
    std::uint64_t rounds = 5;
};

Options parse_options(int count, char** words) {
    Options options;
    for (int i = 1; i < count; i++) {
        const std::string_view word = words[i];
        const std::size_t equals = word.find('=');
        const std::string_view name = word.substr(0, equals);
        std::uint64_t* number = name == "clients"  ? &options.clients
                                : name == "checks" ? &options.checks
                                : name == "rounds" ? &options.rounds
                                                   : nullptr;
        if (equals == word.npos || number == nullptr ||
            !parse_number(word.substr(equals + 1), 100'000'000, number)) {
            fail("unknown option " + std::string(word));
        }
    }
    if (options.clients == 0) {
        fail("clients= is missing");
    }
    return options;
}

double cpu_us() {
    timespec time = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

// No other process uses the table.
Process this_process() {
    return {static_cast<std::uint32_t>(getpid()),
            [](std::uint32_t process) { return kill(static_cast<pid_t>(process), 0) == 0 || errno == EPERM; },
            [] { sched_yield(); }, [] { return Micros{0}; }};
}

// The name of a client, as short as that of an address.
class Name {
  public:
    explicit Name(std::uint64_t number) {
        std::memcpy(text_, "client-", 7);
        end_ = std::to_chars(text_ + 7, text_ + sizeof text_, number).ptr;
    }
    std::string_view text() const { return {text_, static_cast<std::size_t>(end_ - text_)}; }

  private:
    char text_[32];
    const char* end_;
};

class Zone {
  public:
    Zone(std::uint64_t clients, std::uint64_t bytes_per_client)
        : clients_(clients), size_(clients * bytes_per_client / kPage * kPage + kPage) {
        memory_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory_ == MAP_FAILED) {
            fail(std::string("mmap: ") + std::strerror(errno));
        }
        table_ = Table::create(memory_, size_, layout_of(policy_), kHashKey);
    }
    Zone(const Zone&) = delete;
    Zone& operator=(const Zone&) = delete;
    ~Zone() { munmap(memory_, size_); }

    // Returns false if a client had to give way to another.
    bool fill() {
        for (std::uint64_t number = 0; table_ != nullptr && number < clients_; number++) {
            request(Name(number).text());
        }
        return table_ != nullptr && table_->evictions() == 0;
    }

    double bytes_per_client() const { return static_cast<double>(size_) / static_cast<double>(clients_); }

    // Returns the CPU time of a check of a random client.
    double measure(std::uint64_t checks, std::uint64_t seed) {
        std::mt19937_64 random(seed);
        std::size_t length = 0;  // keeps the first loop from being optimized away
        const double begin = cpu_us();
        for (std::uint64_t i = 0; i < checks; i++) {
            length += Name(random() % clients_).text().size();
        }
        random.seed(seed);
        const double middle = cpu_us();
        for (std::uint64_t i = 0; i < checks; i++) {
            request(Name(random() % clients_).text());
        }
        const double end = cpu_us();
        if (length == 0) {
            fail("names are empty");
        }
        return (end - middle - (middle - begin)) / static_cast<double>(checks);
    }

  private:
    void request(std::string_view client) {
        NameRoom room;
        TableLimit limit = memory_limit(table_, policy_, client, 1, &room);
        if (check(&limit, 1, now_++, process_) != Verdict::kAdmitted) {
            fail("a request was not admitted");
        }
    }

    Policy policy_ = policy_of(Algorithm::kSlidingWindow, "1000000000r/d");
    Process process_ = this_process();
    std::uint64_t clients_;
    std::size_t size_;
    void* memory_;
    Table* table_;
    Micros now_ = kMidnight;
};

void run(const Options& options) {
    for (std::uint64_t bytes = kLeastBytes; bytes <= kMostBytes; bytes++) {
        Zone zone(options.clients, bytes);
        if (!zone.fill()) {
            continue;
        }
        std::printf("{\"clients\":%" PRIu64 ",\"bytes_per_client\":%.1f,\"cpu_us_per_check\":[",
                    options.clients, zone.bytes_per_client());
        for (std::uint64_t round = 0; round < options.rounds; round++) {
            std::printf("%s%.4f", round == 0 ? "" : ",", zone.measure(options.checks, round + 1));
        }
        std::printf("]}\n");
        return;
    }
    fail("no zone is large enough");
}

}  // namespace
}  // namespace rate_limit

int main(int count, char** words) {
    rate_limit::run(rate_limit::parse_options(count, words));
    return 0;
}
