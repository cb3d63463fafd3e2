// Lookups run in threads, and may be abandoned at any time.
#include "connection/resolver.h"

#include <dirent.h>
#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>

#include "test.h"

namespace {
std::atomic<bool> name_server_answers{true};
std::atomic<unsigned> questions{0};
}  // namespace

// Replaces getaddrinfo of the system: blocks while a test simulates a silent name server.
extern "C" int getaddrinfo(const char* host, const char* router, const addrinfo* hints, addrinfo** found) {
    using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
    static const auto system = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
    questions++;
    while (!name_server_answers) {
        usleep(1000);
    }
    return system(host, router, hints, found);
}

namespace rate_limit::redis {
namespace {

// Not a valid host name, so the system does not query a name server.
const std::string kNoName = std::string(64, 'x') + ".invalid";

unsigned threads() {
    DIR* folder = opendir("/proc/self/task");
    assert_non_null(folder);
    unsigned count = 0;
    for (const dirent* entry = readdir(folder); entry != nullptr; entry = readdir(folder)) {
        count += entry->d_name[0] != '.' ? 1 : 0;
    }
    closedir(folder);
    return count;
}

// Waits until at most this number of threads is left.
bool await_threads(unsigned most) {
    for (unsigned i = 0; i < 60'000 && threads() > most; i++) {
        usleep(1000);
    }
    return threads() <= most;
}

bool await(const NameLookup* lookup) {
    for (unsigned i = 0; i < 10'000 && !lookup->done(); i++) {
        usleep(1000);
    }
    return lookup->done();
}

void test_localhost_is_resolved(void**) {
    const std::vector<std::string> addresses = resolve("localhost");
    assert_true(std::find(addresses.begin(), addresses.end(), "127.0.0.1") != addresses.end());
    for (const std::string& address : addresses) {
        assert_true(is_numeric(address));
        assert_int_equal(std::count(addresses.begin(), addresses.end(), address), 1);
    }
}

void test_valid_hosts_are_recognized(void**) {
    for (const char* text : {"a", "cache-1.example.com", "a_b", "127.0.0.1", "::1", "fe80::1%eth0", "A9"}) {
        assert_true(is_host(text));
    }
    assert_true(is_host(std::string(253, 'a')));
    assert_false(is_host(std::string(254, 'a')));
    for (const std::string& text : {std::string(), std::string("?"), std::string("a b"), std::string("a\nb"),
                                    std::string("a\0b", 3), std::string("[::1]"), std::string("a/b"),
                                    std::string("a@b"), std::string("\"a\""), std::string("\xc3\xa4")}) {
        assert_false(is_host(text));
    }
}

void test_a_numeric_address_resolves_to_itself(void**) {
    for (const char* text : {"127.0.0.1", "192.0.2.7", "::1", "2001:db8::7"}) {
        const std::vector<std::string> addresses = resolve(text);
        assert_int_equal(addresses.size(), 1);
        assert_string_equal(addresses[0].c_str(), text);
    }
}

void test_a_name_without_an_address_has_none(void**) {
    for (const std::string& text : {kNoName, std::string("a..b"), std::string()}) {
        assert_true(resolve(text).empty());
    }
}

void test_numeric_addresses_are_recognized(void**) {
    for (const char* text : {"127.0.0.1", "0.0.0.0", "255.255.255.255", "::", "::1", "2001:db8::7",
                             "::ffff:192.0.2.7", "fe80::1%eth0", "2001:DB8::7"}) {
        assert_true(is_numeric(text));
    }
    for (const char* text :
         {"", "localhost", "cache.example.com", "127.1", "1.2.3", "1.2.3.4.5", "256.1.1.1", "[::1]", ":",
          ":::", "1.2.3.4%eth0", "1.2.3.4:6379", "::g", "%", "%::1", "127.0.0.1 ", "0x7f.0.0.1"}) {
        if (is_numeric(text)) {
            fail_msg("%s is taken for an address", text);
        }
    }
}

void test_a_lookup_finds_what_resolve_finds(void**) {
    NameLookup* lookup = NameLookup::start("localhost");
    assert_non_null(lookup);
    assert_true(await(lookup));
    assert_true(lookup->addresses() == resolve("localhost"));
    lookup->forget();
    assert_true(await_threads(1));
}

void test_a_lookup_without_a_result_is_done(void**) {
    NameLookup* lookup = NameLookup::start(kNoName);
    assert_non_null(lookup);
    assert_true(await(lookup));
    assert_true(lookup->addresses().empty());
    lookup->forget();
    assert_true(await_threads(1));
}

void test_forgotten_lookups_end_in_the_background(void**) {
    for (unsigned i = 0; i < 200; i++) {
        NameLookup* lookup = NameLookup::start(i % 2 == 0 ? "localhost" : kNoName);
        assert_non_null(lookup);
        if (i % 3 == 0) {
            usleep(i % 7 * 100);
        }
        lookup->forget();
    }
    assert_true(await_threads(1));
}

void test_few_threads_look_up_many_names(void**) {
    name_server_answers = false;
    questions = 0;
    std::vector<NameLookup*> lookups;
    for (unsigned i = 0; i < 3000; i++) {
        lookups.push_back(NameLookup::start("localhost"));
        assert_non_null(lookups.back());
        if (i % 500 == 0) {
            assert_true(threads() <= 1 + NameLookup::kMostThreads);
        }
    }
    assert_true(threads() <= 1 + NameLookup::kMostThreads);
    // A lookup that is forgotten in the queue does not start.
    for (unsigned i = 100; i < lookups.size(); i++) {
        lookups[i]->forget();
    }
    lookups.resize(100);
    name_server_answers = true;
    for (NameLookup* lookup : lookups) {
        assert_true(await(lookup));
        assert_false(lookup->addresses().empty());
        lookup->forget();
    }
    assert_true(await_threads(1));
    assert_int_equal(questions, 100);
}

// Removes from `*blocked` the signals that another thread of this process does not block; false if
// there is no other thread.
bool look_beside(std::uint64_t* blocked) {
    bool seen = false;
    DIR* folder = opendir("/proc/self/task");
    for (const dirent* entry = readdir(folder); entry != nullptr; entry = readdir(folder)) {
        if (entry->d_name[0] == '.' || entry->d_name == std::to_string(getpid())) {
            continue;
        }
        std::ifstream status(std::string("/proc/self/task/") + entry->d_name + "/status");
        std::string word;
        std::uint64_t threads = 0;  // 0 if the thread is ending: then it has no mask
        std::uint64_t mask = 0;
        while (word != "SigBlk:" && status >> word) {
            if (word == "Threads:") {
                status >> threads;
            }
        }
        if (status >> std::hex >> mask && threads != 0) {
            *blocked &= mask;
            seen = true;
        }
    }
    closedir(folder);
    return seen;
}

void test_the_threads_block_all_signals(void**) {
    sigset_t before;
    sigset_t after;
    pthread_sigmask(SIG_SETMASK, nullptr, &before);
    std::uint64_t blocked = ~std::uint64_t{0};
    unsigned seen = 0;
    for (unsigned i = 0; i < 10'000 && seen < 200; i++) {
        NameLookup* lookup = NameLookup::start("localhost");
        assert_non_null(lookup);
        while (!lookup->done()) {
            seen += look_beside(&blocked) ? 1 : 0;
        }
        lookup->forget();
    }
    assert_true(seen > 0);
    for (const int number :
         {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGCHLD, SIGWINCH}) {
        assert_true((blocked >> (number - 1) & 1) != 0);
    }
    pthread_sigmask(SIG_SETMASK, nullptr, &after);
    for (int number = 1; number < SIGRTMIN; number++) {
        assert_int_equal(sigismember(&before, number), sigismember(&after, number));
    }
    assert_true(await_threads(1));
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_localhost_is_resolved),
        cmocka_unit_test(test_valid_hosts_are_recognized),
        cmocka_unit_test(test_a_numeric_address_resolves_to_itself),
        cmocka_unit_test(test_a_name_without_an_address_has_none),
        cmocka_unit_test(test_numeric_addresses_are_recognized),
        cmocka_unit_test(test_a_lookup_finds_what_resolve_finds),
        cmocka_unit_test(test_a_lookup_without_a_result_is_done),
        cmocka_unit_test(test_forgotten_lookups_end_in_the_background),
        cmocka_unit_test(test_few_threads_look_up_many_names),
        cmocka_unit_test(test_the_threads_block_all_signals),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
