// The commands of rate_limit.so in Redis and Valkey reply what the scripts reply, leave the same values and
// expiries, and refuse wrong arguments.
//
// The clock of the server stands still, so that the script and the command decide at the same time.
#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>
#include <random>

#include "lua/differential.h"
#include "protocol/pack.h"

namespace rate_limit {
namespace {

constexpr Kind kKinds[] = {
    {"plain", kPlain, 1},
    {"several rates", kSeveralRates | kRateChanges, 1},
    {"everything", kCountAll | kIntervals | kStepsBack | kRateChanges | kSeveralRates, 4},
    {"sync", kImposes | kStepsBack, 1},
    {"sync and everything", kImposes | kCountAll | kIntervals | kRateChanges | kSeveralRates, 4},
};

// A server with the module, and its clock.
class NativeHost {
  public:
    explicit NativeHost(const std::string& program) {
        char folder[] = "/tmp/rate_limit_clock_XXXXXX";
        if (mkdtemp(folder) == nullptr) {
            throw std::runtime_error("cannot make a folder in /tmp");
        }
        folder_ = folder;
        const std::string file = folder_ + "/clock";
        const int clock = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (clock < 0 || ftruncate(clock, sizeof(Micros)) != 0) {
            throw std::runtime_error("cannot make the file of the clock");
        }
        clock_ = static_cast<volatile Micros*>(
            mmap(nullptr, sizeof(Micros), PROT_READ | PROT_WRITE, MAP_SHARED, clock, 0));
        close(clock);
        set(kMidnight);
        const std::string make =
            "RL_DIR=" + folder_ + " perl -It/lib -MRateLimit::Clock -e 'RateLimit::Clock::library()'";
        if (std::system(make.c_str()) != 0) {
            throw std::runtime_error("cannot build the clock");
        }
        setenv("STOPPED_CLOCK", file.c_str(), 1);
        setenv("STOPPED_DAY_ONLY", "1", 1);
        setenv("LD_PRELOAD", (folder_ + "/stopped_clock.so").c_str(), 1);
        char* module = realpath("build/rate_limit.so", nullptr);
        server_ = std::make_unique<Server>(
            program, std::vector<std::string>{"--loadmodule", module != nullptr ? module : "missing"});
        std::free(module);
        unsetenv("LD_PRELOAD");
        check_sha_ = load("ORDER");
        sync_sha_ = load("ORDER.sync");
    }

    ~NativeHost() {
        server_.reset();
        unlink((folder_ + "/clock").c_str());
        unlink((folder_ + "/stopped_clock.so").c_str());
        rmdir(folder_.c_str());
    }

    NativeHost(const NativeHost&) = delete;
    NativeHost& operator=(const NativeHost&) = delete;

    void set(Micros now) { *clock_ = now; }
    Connection& connection() { return server_->connection(); }
    const std::string& check_sha() const { return check_sha_; }
    const std::string& sync_sha() const { return sync_sha_; }

  private:
    std::string load(const std::string& order) {
        return text_of(*connection().call({"SCRIPT", "LOAD", script_text(order, nullptr)}));
    }

    std::string folder_;
    volatile Micros* clock_ = nullptr;
    std::unique_ptr<Server> server_;
    std::string check_sha_;
    std::string sync_sha_;
};

std::unique_ptr<NativeHost> host;
std::uint64_t calls_compared = 0;

// The words of a call by a script, and by a command.
std::vector<std::string> script_words(const TimedCall& call) {
    if (call.sequence != 0) {
        return call.sync_command(host->sync_sha(), "guard", std::to_string(call.sequence),
                                 std::to_string(call.age));
    }
    return call.Call::command(host->check_sha(), declared);
}

std::vector<std::string> native_words(const TimedCall& call) {
    std::vector<std::string> words = script_words(call);
    words.erase(words.begin());
    words[0] = call.sequence != 0 ? "RATELIMIT.SYNC" : "RATELIMIT.CHECK";
    return words;
}

// The value and the expiry of each key in a database.
std::vector<std::string> content_of(const std::vector<std::string>& keys, const char* database) {
    Connection& connection = host->connection();
    connection.call({"SELECT", database});
    std::vector<std::string> content;
    for (const std::string& key : keys) {
        const Reply value = connection.call({"GET", key});
        content.push_back(value->type == REDIS_REPLY_STRING ? text_of(*value) : "none");
        content.push_back(std::to_string(connection.call({"PEXPIRETIME", key})->integer));
    }
    return content;
}

void forget(const std::vector<std::string>& keys) {
    for (const char* database : {"0", "1"}) {
        host->connection().call({"SELECT", database});
        for (const std::string& key : keys) {
            host->connection().call({"DEL", key});
        }
    }
}

void compare(const TimedCall& call) {
    Connection& connection = host->connection();
    host->set(call.now);
    connection.call({"SELECT", "0"});
    const std::string expected = text_of(*connection.call(script_words(call)));
    connection.call({"SELECT", "1"});
    connection.send(native_words(call));
    const Reply got = connection.take();
    std::vector<std::string> keys = call.keys();
    keys.emplace_back("guard");
    if (text_of(*got).find("needs the script") != std::string::npos) {
        forget(keys);
        return;
    }
    if (text_of(*got) != expected) {
        RC_FAIL("at " + std::to_string(call.now) + "\n  script " + show_bytes(expected) + "\n  native " +
                show_bytes(text_of(*got)) + text_of(*got));
    }
    const std::vector<std::string> by_script = content_of(keys, "0");
    const std::vector<std::string> by_command = content_of(keys, "1");
    for (std::size_t i = 0; i < by_script.size(); ++i) {
        if (by_script[i] != by_command[i]) {
            RC_FAIL("at " + std::to_string(call.now) + " key " + keys[i / 2] + "\n  script " +
                    (i % 2 == 0 ? show_bytes(by_script[i]) : by_script[i]) + "\n  native " +
                    (i % 2 == 0 ? show_bytes(by_command[i]) : by_command[i]));
        }
    }
    calls_compared++;
}

void compare_all(const std::string& program) {
    host = std::make_unique<NativeHost>(program);
    calls_compared = 0;
    bool kept = true;
    for (const Kind& kind : kKinds) {
        for (const Algorithm algorithm : kEveryAlgorithm) {
            kept &= rc::check(std::string(algorithm_name(algorithm)) + ", " + kind.name + ": equal", [&] {
                host->connection().call({"FLUSHALL"});
                const Scenario scenario = *any_scenario(algorithm, kind.bits, kind.zones);
                const Calls calls(scenario);
                // The expiry of a key in 1970 is no number for Redis.
                RC_PRE(std::all_of(calls.all().begin(), calls.all().end(), [](const TimedCall& call) {
                    return call.now > kMidnight / 2 && call.now < 2 * kMidnight;
                }));
                for (const TimedCall& call : calls.all()) {
                    compare(call);
                }
            });
        }
    }
    std::printf("# %s: %llu calls equal\n", program.c_str(), static_cast<unsigned long long>(calls_compared));
    assert_true(kept);
}

void test_a_command_does_in_redis_what_the_script_does(void**) { compare_all(server_programs()[0]); }

void test_a_command_does_in_valkey_what_the_script_does(void**) {
    assert_int_equal(server_programs().size(), 2);
    compare_all(server_programs()[1]);
}

// The keys of the other form are read and written by commands of their own.
void test_keys_that_are_not_declared_make_no_difference(void**) {
    declared = false;
    compare_all(server_programs()[0]);
    declared = true;
}

TimedCall simple_call(const std::string& key) {
    TimedCall call;
    call.now = kMidnight;
    const Policy policy = policy_of(Algorithm::kSlidingWindow, "10r/m");
    call.policies = {{policy, layout_of(policy)}};
    call.groups = {{kDecide, {{0, key, 1}}}};
    return call;
}

void test_a_key_that_holds_no_string_is_replaced(void**) {
    host = std::make_unique<NativeHost>(server_programs()[0]);
    for (const char* database : {"0", "1"}) {
        host->connection().call({"SELECT", database});
        host->connection().call({"RPUSH", "a", "1"});
        host->connection().call({"EXPIRE", "a", "1000000"});
        host->connection().call({"SET", "b", "12345678901"});  // stored as a number
    }
    compare(simple_call("a"));
    compare(simple_call("b"));
}

// The second check of a key starts from what the first has written. If nothing can be written, the call is
// refused.
void test_a_key_that_is_not_declared_may_occur_twice(void**) {
    host = std::make_unique<NativeHost>(server_programs()[0]);
    Connection& connection = host->connection();
    declared = false;
    TimedCall call = simple_call("a");
    call.groups[0].limits[0].cost = 6;
    call.groups.push_back(call.groups[0]);
    const auto words = native_words(call);
    compare(call);
    declared = true;
    connection.call({"FLUSHALL"});
    const std::string both = text_of(*connection.call(words));
    assert_true((bytes_at(both, 8, 1) & kDecisionAllowed) != 0);
    const std::size_t second = 8 + packed_size(kDecisionFormat);
    assert_true((bytes_at(both, second, 1) & kDecisionAllowed) == 0);

    connection.call({"FLUSHALL"});
    connection.call({"ACL", "SETUSER", "user", "on", ">x", "~*", "+@all", "-set"});
    connection.call({"AUTH", "user", "x"});
    connection.send(words);
    const Reply refused = connection.take();
    assert_int_equal(refused->type, REDIS_REPLY_ERROR);
    assert_int_equal(connection.call({"EXISTS", "a"})->integer, 0);
}

// A reply has room for the longest value of an algorithm, and the client's key may hold anything.
void test_a_value_that_no_algorithm_has_written_is_not_reported(void**) {
    host = std::make_unique<NativeHost>(server_programs()[0]);
    const std::string foreign(60'000, 'x');
    TimedCall call = simple_call("a");
    call.groups[0].limits[0].cost = 0;
    call.sequence = 1;
    for (const char* database : {"0", "1"}) {
        host->connection().call({"SELECT", database});
        host->connection().call({"SET", "a", foreign});
    }
    compare(call);
    const auto words = native_words(call);
    const Reply reply = host->connection().call(words);
    assert_int_equal(reply->len, 8 + 9);

    NativeServer server;
    server.stored()["a"] = {foreign, kMidnight + kSecond};
    const std::size_t at = words.size() - 4;
    const std::string text =
        server.sync({"a", "guard"}, {words[at], words[at + 1], words[at + 2], words[at + 3]}, kMidnight);
    assert_int_equal(text.size(), 8 + 9);
}

// Arguments of a call with words removed, added, or with other bytes.
std::vector<std::string> damaged(std::vector<std::string> words, std::mt19937* random) {
    const auto any = [=](std::size_t size) { return (*random)() % size; };
    const std::size_t at = 1 + any(words.size() - 1);
    std::string& word = words[at];
    switch (any(5)) {
        case 0:
            words.erase(words.begin() + static_cast<std::ptrdiff_t>(at));
            break;
        case 1:
            words.insert(words.begin() + static_cast<std::ptrdiff_t>(at), std::to_string(any(3)));
            break;
        case 2:
            word.resize(any(word.size() + 1));
            break;
        default:
            for (std::size_t changes = 1 + any(3); changes > 0 && !word.empty(); --changes) {
                word[any(word.size())] = static_cast<char>(any(256));
            }
    }
    return words;
}

// The server answers each call, by a reply or an error, and still runs.
void test_wrong_arguments_get_an_error(void**) {
    host = std::make_unique<NativeHost>(server_programs()[0]);
    std::mt19937 random(20261119);
    unsigned errors = 0;
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (unsigned i = 0; i < 3000; ++i) {
            TimedCall call = simple_call("a");
            const Policy policy = policy_of(algorithm, i % 2 == 0 ? "10r/m" : "10r/m,100r/h");
            call.policies.assign(1, {policy, layout_of(policy)});
            call.groups.push_back({kUndo, {{0, "b", 2, {3, kMidnight}}}});
            call.sequence = i % 3 == 0 ? 1 + i : 0;
            host->connection().send(damaged(native_words(call), &random));
            const Reply reply = host->connection().take();
            assert_true(reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_ERROR);
            errors += reply->type == REDIS_REPLY_ERROR ? 1 : 0;
        }
    }
    assert_true(errors > 5000);
    assert_string_equal(text_of(*host->connection().call({"PING"})).c_str(), "PONG");
}

void test_no_keys_show_that_the_commands_are_there(void**) {
    host = std::make_unique<NativeHost>(server_programs()[0]);
    const Reply reply = host->connection().call({"RATELIMIT.CHECK", "0", "", ""});
    assert_int_equal(reply->len, 8);
    assert_int_equal(bytes_at(text_of(*reply), 0, 8), kMidnight);
}

int stop_host(void**) {
    host.reset();
    return 0;
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    // Each call is several round trips.
    setenv("RC_PARAMS", whole_run() ? "max_success=60" : "max_success=3 max_size=60", 0);
    set_parameters("60");
    const CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_command_does_in_redis_what_the_script_does, stop_host),
        cmocka_unit_test_teardown(test_a_command_does_in_valkey_what_the_script_does, stop_host),
        cmocka_unit_test_teardown(test_keys_that_are_not_declared_make_no_difference, stop_host),
        cmocka_unit_test_teardown(test_a_key_that_holds_no_string_is_replaced, stop_host),
        cmocka_unit_test_teardown(test_a_key_that_is_not_declared_may_occur_twice, stop_host),
        cmocka_unit_test_teardown(test_a_value_that_no_algorithm_has_written_is_not_reported, stop_host),
        cmocka_unit_test_teardown(test_wrong_arguments_get_an_error, stop_host),
        cmocka_unit_test_teardown(test_no_keys_show_that_the_commands_are_there, stop_host),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
