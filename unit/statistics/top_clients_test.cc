// The clients with the most rejections are found among any number of others, even if processes die.
#include "statistics/top_clients.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "memory/processes.h"

namespace rate_limit {
namespace {

constexpr Micros kMinuteOfClock = 60 * kSecond;
constexpr Micros kStart = 1000 * kMinuteOfClock;

std::unique_ptr<TopClients> make_hitters() { return std::make_unique<TopClients>(); }

void add_often(TopClients* top_clients, const std::string& client, unsigned times, Micros now = kStart) {
    for (unsigned i = 0; i < times; i++) {
        top_clients->add(client, now, this_process());
    }
}

std::vector<TopClient> read_all(TopClients* top_clients, Micros now = kStart) {
    return top_clients->read(1000, now, this_process());
}

void test_nobody_is_listed_at_first(void**) { assert_true(read_all(make_hitters().get()).empty()); }

void test_few_clients_are_counted_exactly(void**) {
    const auto top_clients = make_hitters();
    for (unsigned i = 1; i <= TopClients::kClients; i++) {
        add_often(top_clients.get(), "client" + std::to_string(i), i);
    }
    const auto list = read_all(top_clients.get());
    assert_int_equal(list.size(), TopClients::kClients);
    for (unsigned i = 0; i < list.size(); i++) {
        const unsigned expected = TopClients::kClients - i;
        assert_string_equal(list[i].name.c_str(), ("client" + std::to_string(expected)).c_str());
        assert_int_equal(list[i].rejected, expected);
        assert_int_equal(list[i].error, 0);
    }
    assert_int_equal(top_clients->read(3, kStart, this_process()).size(), 3);
    assert_string_equal(top_clients->read(1, kStart, this_process())[0].name.c_str(), "client64");
    assert_int_equal(top_clients->missed(), 0);
}

void test_names_are_kept_as_they_are(void**) {
    const auto top_clients = make_hitters();
    const std::string longest(kLongestName, 'x');
    const std::string bytes("a\0b\"\\\xff", 6);
    for (const std::string& name : {longest, bytes, longest.substr(1), bytes.substr(0, 1)}) {
        add_often(top_clients.get(), name, static_cast<unsigned>(name.size()));
    }
    const auto list = read_all(top_clients.get());
    assert_int_equal(list.size(), 4);
    assert_true(list[0].name == longest);
    assert_true(list[1].name == longest.substr(1));
    assert_true(list[2].name == bytes);
    assert_int_equal(list[2].rejected, 6);
    assert_true(list[3].name == "a");
}

// A new client replaces the one with the lowest count; its own earlier count is unknown.
void test_a_newcomer_to_a_full_list_may_be_counted_too_high(void**) {
    const auto top_clients = make_hitters();
    for (unsigned i = 0; i < TopClients::kClients; i++) {
        add_often(top_clients.get(), "client" + std::to_string(i), i == 7 ? 3 : 10);
    }
    add_often(top_clients.get(), "newcomer", 2);
    const auto list = read_all(top_clients.get());
    assert_int_equal(list.size(), TopClients::kClients);
    const auto named = [&](const char* name) {
        return std::find_if(list.begin(), list.end(), [&](const TopClient& one) { return one.name == name; });
    };
    assert_true(named("client7") == list.end());
    assert_true(named("newcomer") != list.end());
    assert_int_equal(named("newcomer")->rejected, 5);
    assert_int_equal(named("newcomer")->error, 3);
    // Its rejected - error is the lowest.
    assert_true(named("newcomer") == list.end() - 1);
}

// Zipf: client n has 1/n of the rejections of the first client.
void test_heavy_clients_are_found_among_a_hundred_thousand(void**) {
    constexpr unsigned kClients = 100'000;
    constexpr unsigned kRejections = 400'000;
    std::vector<double> weights(kClients);
    for (unsigned i = 0; i < kClients; i++) {
        weights[i] = 1.0 / (i + 1);
    }
    std::discrete_distribution<unsigned> zipf(weights.begin(), weights.end());
    std::mt19937 random(20);
    const auto top_clients = make_hitters();
    std::map<std::string, std::uint64_t> truth;
    for (unsigned i = 0; i < kRejections; i++) {
        const std::string client = "ip:192.0." + std::to_string(zipf(random));
        truth[client]++;
        top_clients->add(client, kStart, this_process());
    }
    const auto list = read_all(top_clients.get());
    for (const TopClient& one : list) {
        assert_true(one.rejected >= truth[one.name]);
        assert_true(one.rejected - one.error <= truth[one.name]);
        assert_true(one.error <= kRejections / TopClients::kClients);
    }
    for (unsigned i = 0; i < 5; i++) {
        assert_string_equal(list[i].name.c_str(), ("ip:192.0." + std::to_string(i)).c_str());
    }
    for (const auto& [client, count] : truth) {
        const bool listed = std::any_of(list.begin(), list.end(),
                                        [&name = client](const TopClient& one) { return one.name == name; });
        assert_true(listed || count <= kRejections / TopClients::kClients);
    }
}

void test_minutes_are_added_up_and_forgotten(void**) {
    const auto top_clients = make_hitters();
    for (unsigned minute = 0; minute < 7; minute++) {
        add_often(top_clients.get(), "always", 10, kStart + minute * kMinuteOfClock);
        add_often(top_clients.get(), "minute" + std::to_string(minute), 5, kStart + minute * kMinuteOfClock);
    }
    const auto list = read_all(top_clients.get(), kStart + 6 * kMinuteOfClock);
    assert_int_equal(list.size(), 6);
    assert_string_equal(list[0].name.c_str(), "always");
    assert_int_equal(list[0].rejected, 50);
    for (unsigned i = 1; i < 6; i++) {
        assert_string_equal(list[i].name.c_str(), ("minute" + std::to_string(i + 1)).c_str());
    }
    // Old clients disappear also without new rejections.
    assert_int_equal(read_all(top_clients.get(), kStart + 9 * kMinuteOfClock)[0].rejected, 20);
    assert_int_equal(read_all(top_clients.get(), kStart + 11 * kMinuteOfClock - 1).size(), 2);
    assert_true(read_all(top_clients.get(), kStart + 11 * kMinuteOfClock).empty());
}

void test_a_process_with_an_old_time_empties_no_newer_list(void**) {
    const auto top_clients = make_hitters();
    add_often(top_clients.get(), "now", 4, kStart + 5 * kMinuteOfClock);
    add_often(top_clients.get(), "late", 2, kStart);
    const auto list = read_all(top_clients.get(), kStart + 5 * kMinuteOfClock);
    assert_int_equal(list.size(), 2);
    assert_int_equal(list[0].rejected, 4);
}

// Clients on the list are counted exactly; a new client may be missed, and missed() counts that.
void test_processes_together_miss_what_they_say(void**) {
    constexpr unsigned kProcesses = 4;
    constexpr unsigned kEach = 1'500'000;
    const Memory memory(sizeof(TopClients) + sizeof(Meeting));
    auto* top_clients = new (memory.at()) TopClients;
    auto* meeting = reinterpret_cast<Meeting*>(top_clients + 1);
    const auto work = [&](unsigned number) {
        const Process process = this_process();
        meeting->join(kProcesses);
        for (unsigned i = 0; i < kEach; i++) {
            top_clients->add("client" + std::to_string(i % 10 + number), kStart, process);
        }
        return 0;
    };
    Child one([&] { return work(1); });
    Child two([&] { return work(2); });
    Child three([&] { return work(3); });
    work(0);
    assert_int_equal(one.wait() + two.wait() + three.wait(), 0);
    std::uint64_t sum = top_clients->missed();
    const auto list = read_all(top_clients);
    assert_int_equal(list.size(), 13);
    for (const TopClient& top_client : list) {
        assert_int_equal(top_client.error, 0);
        sum += top_client.rejected;
    }
    assert_int_equal(sum, kProcesses * kEach);
}

// A process that is killed at any point of add() leaves valid lists, and others continue.
void test_a_process_that_dies_at_work_does_no_harm(void**) {
    const Memory memory(sizeof(TopClients));
    auto* top_clients = new (memory.at()) TopClients;
    const Process process = this_process();
    for (unsigned round = 0; round < 60; round++) {
        std::atomic<bool>* ready = nullptr;
        const Memory flag(sizeof(*ready));
        ready = new (flag.at()) std::atomic<bool>(false);
        Child child([&] {
            const Process own = this_process();
            for (unsigned i = 0;; i++) {
                top_clients->add("victim" + std::to_string(i % 1000), kStart, own);
                ready->store(true);
            }
            return 0;
        });
        while (!ready->load()) {
            sched_yield();
        }
        usleep(100 + round * 7);
        child.kill();
        child.wait();
        for (unsigned i = 0; i < 1000; i++) {
            top_clients->add("survivor", kStart, process);
        }
        const auto list = top_clients->read(1000, kStart, process);
        for (const TopClient& one : list) {
            assert_true(one.name.substr(0, 6) == "victim" || one.name == "survivor");
            assert_true(one.error < one.rejected);
        }
        const auto survivor = std::find_if(list.begin(), list.end(),
                                           [](const TopClient& one) { return one.name == "survivor"; });
        assert_true(survivor != list.end());
        assert_true(survivor->rejected > (round + 1) * 900);
    }
}

// The lock holder is a process id whose life the test decides.
bool holder_lives = true;

void test_a_lock_is_taken_from_the_dead_only(void**) {
    const Memory memory(sizeof(TopClients));
    auto* top_clients = new (memory.at()) TopClients;
    Process process = this_process();
    process.alive = [](std::uint32_t) { return holder_lives; };
    // The lock is the first word.
    auto* lock = memory.as<std::atomic<std::uint32_t>>();
    lock->store(12345);
    holder_lives = true;
    for (unsigned i = 0; i < 1000; i++) {
        top_clients->add("client", kStart, process);
    }
    assert_int_equal(top_clients->missed(), 1000);
    assert_int_equal(lock->load(), 12345);
    assert_true(top_clients->read(10, kStart, process).empty());  // and waits for it no longer than a little
    holder_lives = false;
    for (unsigned i = 0; i < 1000; i++) {
        top_clients->add("client", kStart, process);
    }
    const auto list = top_clients->read(10, kStart, process);
    assert_int_equal(list.size(), 1);
    assert_true(list[0].rejected > 900);
    assert_int_equal(list[0].rejected + top_clients->missed(), 2000);
    assert_int_equal(lock->load(), 0);
    // A client on the list needs no lock.
    holder_lives = true;
    lock->store(12345);
    top_clients->add("client", kStart, process);
    lock->store(0);
    assert_int_equal(top_clients->read(10, kStart, process)[0].rejected, list[0].rejected + 1);
    // A process with the id of a dead holder takes the lock at once.
    lock->store(process.self);
    top_clients->add("another", kStart, process);
    assert_int_equal(top_clients->read(10, kStart, process).size(), 2);
    assert_int_equal(lock->load(), 0);
}

void test_a_reader_frees_what_the_dead_have_locked(void**) {
    const Memory memory(sizeof(TopClients));
    auto* top_clients = new (memory.at()) TopClients;
    Process process = this_process();
    process.alive = [](std::uint32_t) { return false; };
    top_clients->add("client", kStart, process);
    memory.as<std::atomic<std::uint32_t>>()->store(12345);
    assert_int_equal(top_clients->read(10, kStart, process).size(), 1);
    top_clients->add("newcomer", kStart, process);
    assert_int_equal(top_clients->read(10, kStart, process).size(), 2);
    assert_int_equal(top_clients->missed(), 0);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_is_listed_at_first),
        cmocka_unit_test(test_few_clients_are_counted_exactly),
        cmocka_unit_test(test_names_are_kept_as_they_are),
        cmocka_unit_test(test_a_newcomer_to_a_full_list_may_be_counted_too_high),
        cmocka_unit_test(test_heavy_clients_are_found_among_a_hundred_thousand),
        cmocka_unit_test(test_minutes_are_added_up_and_forgotten),
        cmocka_unit_test(test_a_process_with_an_old_time_empties_no_newer_list),
        cmocka_unit_test(test_processes_together_miss_what_they_say),
        cmocka_unit_test(test_a_process_that_dies_at_work_does_no_harm),
        cmocka_unit_test(test_a_lock_is_taken_from_the_dead_only),
        cmocka_unit_test(test_a_reader_frees_what_the_dead_have_locked),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
