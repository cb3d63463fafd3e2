// Sends as many checks to one Redis as it can decide, through the module's own client, and reports the cost
// of a check in Redis.
//
//   redis_load port=PORT[,PORT...] [algorithm=NAME] [batch=N] [clients=N] [calls=N] [fill=N] [seconds=N]
//              [rate=RATES] [cluster=1]
//
// With cluster=1 the ports are those of all nodes of a cluster, and CPU times are sums over the nodes.
//
// Sends calls of `batch` (64) checks of random clients among `clients` (100000), with `calls` in flight (by
// default enough for 256 checks, and at least 4). First sends `fill` (1) checks of each client, then measures
// for `seconds` (5; 0 ends the program before). With the default rate, 100r/m, all checks are admitted unless
// Redis is very fast.
//
// Prints JSON:
//
//   checks_per_second        of real time
//   redis_cpu_us_per_check   CPU time of all threads of the server
//   checks_per_cpu_second    a million divided by redis_cpu_us_per_check: the capacity of an idle core
//   redis_busy               CPU time divided by real time: below 1 if other processes use the CPU
//   client_cpu_us_per_check  of this program: the module's part of a check, without nginx
//   batch, mean_batch        checks per call: the option, and the measured mean
//   algorithm, clients, seconds, rate, checks, admitted
#include <dirent.h>
#include <hiredis/hiredis.h>
#include <signal.h>
#include <time.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "client.h"
#include "cluster/cluster.h"
#include "poll_loop.h"
#include "protocol/script_text.h"
#include "protocol/wire.h"
#include "redis/client.h"
#include "store/check_batcher.h"

namespace rate_limit {
namespace {

constexpr std::uint64_t kLeastInFlight = 256;  // checks
constexpr std::uint64_t kLeastCalls = 4;
constexpr double kPatience = 60;            // timeout in seconds, in addition to the measurement
constexpr double kLeastPerSecond = 10'000;  // checks, which extend the timeout while clients are filled in

struct Options {
    Algorithm algorithm = Algorithm::kSlidingWindow;
    std::string rate = "100r/m";
    std::vector<std::uint64_t> ports;
    std::uint64_t cluster = 0;
    std::uint64_t batch = 64;
    std::uint64_t clients = 100'000;
    std::uint64_t calls = 0;
    std::uint64_t fill = 1;
    std::uint64_t seconds = 5;
};

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "redis_load: %s\n", what.c_str());
    std::exit(1);
}

bool set_number(std::string_view value, std::uint64_t most, std::uint64_t* number) {
    return parse_number(value, most, number) && *number != 0;
}

bool set_option(std::string_view name, std::string_view value, Options* options) {
    if (name == "algorithm") {
        return parse_algorithm(value, &options->algorithm);
    }
    if (name == "rate") {
        RateList rates;
        options->rate = value;
        return parse_rates(value, &rates) == nullptr && rates.size != 0;
    }
    if (name == "port") {
        for (std::size_t comma = 0; comma != value.npos;) {
            std::uint64_t port = 0;
            comma = value.find(',');
            if (!set_number(value.substr(0, comma), 65535, &port)) {
                return false;
            }
            options->ports.push_back(port);
            value.remove_prefix(comma == value.npos ? value.size() : comma + 1);
        }
        return true;
    }
    return (name == "cluster" && set_number(value, 1, &options->cluster)) ||
           (name == "batch" && set_number(value, 1024, &options->batch)) ||
           (name == "clients" && set_number(value, 10'000'000, &options->clients)) ||
           (name == "calls" && set_number(value, 10'000, &options->calls)) ||
           (name == "fill" && set_number(value, 1000, &options->fill)) ||
           (name == "seconds" && parse_number(value, 3600, &options->seconds));
}

Options parse_options(int count, char** words) {
    Options options;
    for (int i = 1; i < count; i++) {
        const std::string_view word = words[i];
        const std::size_t equals = word.find('=');
        if (equals == word.npos || !set_option(word.substr(0, equals), word.substr(equals + 1), &options)) {
            fail("what is meant by " + std::string(word) + "?");
        }
    }
    if (options.ports.empty() || (options.ports.size() > 1 && options.cluster == 0)) {
        fail("port= is needed, and cluster=1 if there are several");
    }
    if (options.calls == 0) {
        options.calls = std::max(kLeastCalls, kLeastInFlight / options.batch);
    }
    return options;
}

double seconds_of(clockid_t clock) {
    timespec time = {};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// The process of the server, on this machine.
class Process {
  public:
    explicit Process(std::uint64_t port) {
        redisContext* context = redisConnect("127.0.0.1", static_cast<int>(port));
        if (context == nullptr || context->err != 0) {
            fail("there is no Redis on port " + std::to_string(port));
        }
        auto* reply = static_cast<redisReply*>(redisCommand(context, "INFO server"));
        const char* at =
            reply != nullptr && reply->str != nullptr ? std::strstr(reply->str, "process_id:") : nullptr;
        if (at == nullptr) {
            fail("Redis does not tell its process");
        }
        tasks_ = "/proc/" + std::to_string(std::atoi(at + std::strlen("process_id:"))) + "/task";
        freeReplyObject(reply);
        redisFree(context);
    }

    // The CPU time of all its threads.
    double cpu_seconds() const {
        DIR* folder = opendir(tasks_.c_str());
        if (folder == nullptr) {
            fail(tasks_ + " cannot be read");
        }
        double sum = 0;
        while (const dirent* entry = readdir(folder)) {
            std::ifstream in(tasks_ + "/" + entry->d_name + "/schedstat");
            double nanoseconds = 0;
            if (entry->d_name[0] != '.' && in >> nanoseconds) {
                sum += nanoseconds * 1e-9;
            }
        }
        closedir(folder);
        return sum;
    }

  private:
    std::string tasks_;
};

struct Moment {
    double time;       // seconds
    double redis_cpu;  // seconds
    double own_cpu;    // seconds
    std::uint64_t checks;
    std::uint64_t admitted;
    std::uint64_t calls;
};

class Load {
  public:
    explicit Load(const Options& options)
        : options_(options),
          policy_(policy_of(options.algorithm, options.rate)),
          processes_(options.ports.begin(), options.ports.end()),
          waves_(options.calls) {
        settings_.name = "redis_load";
        settings_.address.host = "127.0.0.1";
        settings_.address.port = static_cast<std::uint16_t>(options.ports[0]);
        settings_.script = {kScript, sizeof kScript - 1};
        // A Redis under valgrind takes seconds for a handshake if other processes use its CPU.
        settings_.timeout = settings_.connect_timeout = 60'000;
        settings_.probe_key = "rate_limit:probe";
        // A server with the native module decides by it.
        settings_.native_probe = kNativeProbe;
        redis::Router* router = nullptr;
        if (options.cluster != 0) {
            router =
                new redis::Cluster(settings_, {{"127.0.0.1", settings_.address.port, {"127.0.0.1"}}}, &loop_);
        } else {
            router = redis::Client::make(settings_, {"127.0.0.1"}, &loop_);
        }
        batcher_ = std::make_unique<CheckBatcher>(
            router, CheckBatcher::Options{"rate_limit:", static_cast<std::uint32_t>(options.batch)}, &loop_);
        zone_.label = "api";
        zone_.layout = layout_of(policy_);
        for (std::uint64_t i = 0; i < options.clients; i++) {
            names_.push_back("client-" + std::to_string(100'000'000 + i));
        }
        for (Wave& wave : waves_) {
            wave.load = this;
            wave.limits.resize(options.batch);
            wave.questions.resize(options.batch);
        }
    }

    void run();

  private:
    // Checks that are sent together, and again after all replies.
    struct Wave {
        Load* load = nullptr;
        std::vector<Limit> limits;
        std::vector<Question> questions;
        std::size_t open = 0;
    };

    static void on_done(Question* question);
    void ask(Wave* wave);
    Moment now() const;
    void print(const Moment& begin, const Moment& end) const;

    std::uint64_t fill() const { return options_.fill * names_.size(); }
    const std::string& next_name() {
        const std::uint64_t number = asked_ < fill() ? asked_ : random_();
        asked_++;
        return names_[number % names_.size()];
    }

    Options options_;
    Policy policy_;
    StoreZone zone_ = {};
    std::vector<Process> processes_;
    redis::PollLoop loop_;
    redis::Settings settings_;
    std::unique_ptr<CheckBatcher> batcher_;
    std::vector<std::string> names_;
    std::vector<Wave> waves_;
    std::mt19937_64 random_{1};
    std::uint64_t asked_ = 0;
    std::uint64_t answered_ = 0;
    std::uint64_t admitted_ = 0;
    bool over_ = false;
};

void Load::on_done(Question* question) {
    auto* wave = static_cast<Wave*>(question->data);
    Load* load = wave->load;
    if (question->error != redis::Error::kNone) {
        fail("Redis has not decided a check");
    }
    load->answered_++;
    load->admitted_ += question->limits[0].decision.allowed ? 1 : 0;
    if (--wave->open == 0 && !load->over_) {
        load->ask(wave);
    }
}

void Load::ask(Wave* wave) {
    wave->open = options_.batch;
    for (std::size_t i = 0; i < options_.batch; i++) {
        wave->limits[i] = {&zone_, &policy_, next_name(), 1, nullptr, false, false, {}, {}, {}, 0, false, 0};
        wave->questions[i] = {};
        wave->questions[i].limits = &wave->limits[i];
        wave->questions[i].indices[0] = 0;
        wave->questions[i].count = 1;
        wave->questions[i].done = on_done;
        wave->questions[i].data = wave;
        if (!batcher_->ask(&wave->questions[i])) {
            fail("there is no memory");
        }
    }
}

Moment Load::now() const {
    double redis_cpu = 0;
    for (const Process& process : processes_) {
        redis_cpu += process.cpu_seconds();
    }
    std::set<const redis::Client*> clients;
    for (unsigned slot = 0; slot < redis::kHashSlots; slot++) {
        clients.insert(batcher_->router().client_of(static_cast<redis::HashSlot>(slot)));
    }
    std::uint64_t calls = 0;
    for (const redis::Client* client : clients) {
        calls += client->counts().calls;
    }
    return {seconds_of(CLOCK_MONOTONIC),
            redis_cpu,
            seconds_of(CLOCK_PROCESS_CPUTIME_ID),
            answered_,
            admitted_,
            calls};
}

void Load::run() {
    const double start = seconds_of(CLOCK_MONOTONIC);
    const auto turn = [&](double patience) {
        loop_.turn();
        if (seconds_of(CLOCK_MONOTONIC) - start > patience) {
            fail("Redis does not answer in time");
        }
    };
    for (Wave& wave : waves_) {
        ask(&wave);
    }
    const double patience = kPatience + static_cast<double>(fill()) / kLeastPerSecond;
    while (answered_ < fill()) {
        turn(patience);
    }
    const Moment begin = now();
    const auto length = static_cast<double>(options_.seconds);
    while (seconds_of(CLOCK_MONOTONIC) - begin.time < length) {
        turn(patience + kPatience + length);
    }
    const Moment end = now();
    over_ = true;
    while (answered_ < asked_) {
        turn(patience + kPatience + length);
    }
    if (options_.seconds != 0) {
        print(begin, end);
    }
}

void Load::print(const Moment& begin, const Moment& end) const {
    const double time = end.time - begin.time;
    const double redis_cpu = end.redis_cpu - begin.redis_cpu;
    const auto checks = static_cast<double>(end.checks - begin.checks);
    std::printf("{\"algorithm\":\"%s\",\"batch\":%" PRIu64 ",\"mean_batch\":%.2f,\"clients\":%" PRIu64
                ",\"rate\":\"%s\",\"seconds\":%.3f,\"checks\":%.0f,\"admitted\":%" PRIu64
                ",\"checks_per_second\":%.0f,\"redis_cpu_us_per_check\":%.3f,\"checks_per_cpu_second\":%.0f"
                ",\"redis_busy\":%.3f"
                ",\"client_cpu_us_per_check\":%.3f}\n",
                algorithm_name(options_.algorithm), options_.batch,
                checks / static_cast<double>(end.calls - begin.calls), options_.clients,
                options_.rate.c_str(), time, checks, end.admitted - begin.admitted, checks / time,
                redis_cpu / checks * 1e6, checks / redis_cpu, redis_cpu / time,
                (end.own_cpu - begin.own_cpu) / checks * 1e6);
}

}  // namespace
}  // namespace rate_limit

int main(int count, char** words) {
    signal(SIGPIPE, SIG_IGN);
    rate_limit::Load load(rate_limit::parse_options(count, words));
    load.run();
    return 0;
}
