// Concurrent processes together admit as many requests as one process would.
#include <sys/mman.h>

#include <cstring>

#include "processes.h"
#include "shared_zone.h"
#include "statistics/reminder.h"

namespace rate_limit {
namespace {

constexpr unsigned kProcesses = 4;

// Memory that the processes of a test share, besides zones. All zero at the start.
struct Shared {
    Meeting meeting;
    std::atomic<std::uint32_t> admitted[64];
    std::atomic<bool> failed;
    std::atomic<bool> over;
};

// Runs `work(process)` in kProcesses processes, of which this is one; all must return 0.
template <class Work>
void together(const Work& work) {
    Child one([&] { return work(1); });
    Child two([&] { return work(2); });
    Child three([&] { return work(3); });
    const int mine = work(0);
    assert_int_equal(one.wait(), 0);
    assert_int_equal(two.wait(), 0);
    assert_int_equal(three.wait(), 0);
    assert_int_equal(mine, 0);
}

// In each round all processes check the same new clients, each process in another order. Between rounds the
// zone is cleared, or the clock moves on until all clients have their full quota and can be evicted.
struct Rounds {
    const Zone* zone;
    Shared* shared;
    unsigned clients;
    unsigned requests;  // that each process sends for each client
    bool clears;

    // On a busy machine, as many rounds as there is time for.
    static constexpr unsigned kMost = 4000;
    static constexpr double kSeconds = 0.15;

    int run(unsigned number) const {
        const Process process = patient_process();
        const double start = seconds();
        for (unsigned round = 0; round < kMost && !shared->over; round++) {
            const Micros now = kNow + round * 10 * kMinute;
            if (number == 0) {
                prepare();
            }
            shared->meeting.join(kProcesses);
            for (unsigned i = 0; i < clients * requests; i++) {
                const unsigned client = (number % 2 == 0 ? i : clients * requests - 1 - i) % clients;
                TableLimit limit = zone->limit(client_number(round * clients + client));
                const Verdict verdict = check(&limit, 1, now, process);
                shared->admitted[client] += verdict == Verdict::kAdmitted ? 1 : 0;
                if (verdict == Verdict::kBusy) {
                    shared->failed = true;
                }
            }
            shared->meeting.join(kProcesses);
            if (number == 0) {
                shared->failed = shared->failed || !exact(round, now);
                shared->over = seconds() - start > kSeconds;
            }
            shared->meeting.join(kProcesses);
            if (shared->failed) {
                return 1;
            }
        }
        return 0;
    }

  private:
    void prepare() const {
        if (clears) {
            zone->clear();
        }
        for (unsigned i = 0; i < clients; i++) {
            shared->admitted[i] = 0;
        }
    }

    bool exact(unsigned round, Micros now) const {
        const std::uint64_t limit = zone->policy().rates.rates[0].count;
        for (unsigned i = 0; i < clients; i++) {
            if (shared->admitted[i] != limit ||
                zone->used(client_number(round * clients + i), now) != limit) {
                print_error("%s: round %u, client %u: %u admitted, %u used, %lu evictions\n",
                            algorithm_name(zone->policy().algorithm), round, i, shared->admitted[i].load(),
                            zone->used(client_number(round * clients + i), now),
                            static_cast<unsigned long>(zone->table().evictions()));
                return false;
            }
        }
        return !clears || zone->table().clients() == clients;
    }
};

void test_one_client_of_many_processes_gets_exactly_its_limit(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Memory memory(sizeof(Shared));
        const Zone zone = small_zone(policy_of(algorithm, "10r/m"), 8);
        const Rounds rounds = {&zone, memory.as<Shared>(), 1, 5, true};
        together([&](unsigned number) { return rounds.run(number); });
    }
}

void test_fifty_new_clients_of_many_processes_get_exactly_their_limits(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Memory memory(sizeof(Shared));
        const Zone zone = small_zone(policy_of(algorithm, "3r/m"), 8);
        const Rounds rounds = {&zone, memory.as<Shared>(), 50, 2, true};
        together([&](unsigned number) { return rounds.run(number); });
        assert_int_equal(zone->evictions(), 0);
    }
}

void test_new_clients_that_take_the_slots_of_old_ones_get_exactly_their_limits(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Memory memory(sizeof(Shared));
        const Zone zone = small_zone(policy_of(algorithm, "3r/m"), 64);
        const Rounds rounds = {&zone, memory.as<Shared>(), 50, 2, false};
        together([&](unsigned number) { return rounds.run(number); });
        assert_int_equal(zone->evictions(), 0);
    }
}

void test_new_clients_that_crowd_one_set_get_exactly_their_limits(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Memory memory(sizeof(Shared));
        const Zone zone = small_zone(policy_of(algorithm, "3r/m"), 1);
        const Rounds rounds = {&zone, memory.as<Shared>(), 8, 2, false};
        together([&](unsigned number) { return rounds.run(number); });
        assert_int_equal(zone->evictions(), 0);
    }
}

void test_long_contention_for_one_client_loses_no_count(void**) {
    const Memory memory(sizeof(Shared));
    const Zone zone(policy_of(Algorithm::kFixedWindow, "1000000r/d"));
    together([&](unsigned) {
        const Process process = patient_process();
        for (unsigned i = 0; i < 100'000; i++) {
            TableLimit limit = zone.limit(1);
            if (check(&limit, 1, kNow, process) != Verdict::kAdmitted) {
                return 1;
            }
        }
        return 0;
    });
    assert_int_equal(zone.used(1), 400'000);
}

// Groups over a zone of one client, one of 5 and one of 50, in every order.
constexpr unsigned kClientsOf[3] = {1, 5, 50};
constexpr unsigned kFirstOf[3] = {0, 1, 6};

struct Groups {
    const Zone* zones[3];
    Shared* shared;

    int run(unsigned number) const {
        static constexpr unsigned kOrders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                                   {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
        const Process process = patient_process();
        const double start = seconds();
        shared->meeting.join(kProcesses);
        for (unsigned i = 0; i < 40'000; i++) {
            const std::uint64_t random = client_number(i * kProcesses + number);
            const unsigned client[3] = {0, static_cast<unsigned>(random / 64 % 5),
                                        static_cast<unsigned>(random / 1024 % 50)};
            const unsigned* order = kOrders[random / 2 % 6];
            TableLimit limits[3];
            for (unsigned j = 0; j < 3; j++) {
                limits[j] = zones[order[j]]->limit(client_number(client[order[j]]));
            }
            const Verdict verdict = check(limits, 3, kNow, process);
            if (verdict == Verdict::kBusy || (i % 1000 == 0 && seconds() - start > 60)) {
                return 1;
            }
            for (unsigned j = 0; verdict == Verdict::kAdmitted && j < 3; j++) {
                shared->admitted[kFirstOf[j] + client[j]]++;
            }
        }
        return 0;
    }
};

void test_groups_are_charged_to_all_zones_or_none_whoever_comes_when(void**) {
    for (const Algorithm algorithm :
         {Algorithm::kSlidingWindow, Algorithm::kTokenBucket, Algorithm::kSlidingLog}) {
        const Memory memory(sizeof(Shared));
        auto* shared = memory.as<Shared>();
        const Zone zones[3] = {small_zone(policy_of(algorithm, "50000r/d"), 1),
                               small_zone(policy_of(algorithm, "12000r/d"), 1),
                               small_zone(policy_of(algorithm, "1100r/d"), 16)};
        const Groups groups = {{&zones[0], &zones[1], &zones[2]}, shared};
        together([&](unsigned number) { return groups.run(number); });
        std::uint32_t sums[3] = {};
        for (unsigned zone = 0; zone < 3; zone++) {
            for (unsigned client = 0; client < kClientsOf[zone]; client++) {
                const std::uint32_t admitted = shared->admitted[kFirstOf[zone] + client];
                assert_int_equal(zones[zone].used(client_number(client)), admitted);
                sums[zone] += admitted;
            }
        }
        assert_int_equal(sums[0], 50'000);
        assert_int_equal(sums[1], sums[0]);
        assert_int_equal(sums[2], sums[0]);
    }
}

void test_an_old_and_a_new_rate_share_a_zone(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Memory memory(sizeof(Shared));
        auto* shared = memory.as<Shared>();
        const Policy policies[] = {policy_of(algorithm, "20r/m"), policy_of(algorithm, "50r/m")};
        const Zone zone(policies[1], layout_of(policies[1]), kMegabyteZone);
        together([&](unsigned number) {
            const Process process = patient_process();
            shared->meeting.join(kProcesses);
            for (unsigned i = 0; i < 3000; i++) {
                TableLimit limit = {&zone.table(), &policies[number % 2], client_number(i % 20), 1, {}};
                const Verdict verdict = check(&limit, 1, kNow + i, process);
                shared->admitted[i % 20] += verdict == Verdict::kAdmitted ? 1 : 0;
                if (verdict == Verdict::kBusy || limit.decision.remaining > limit.decision.limit) {
                    return 1;
                }
            }
            return 0;
        });
        for (unsigned i = 0; i < 20; i++) {
            assert_int_equal(shared->admitted[i], 50);
            assert_int_equal(zone.used(client_number(i), kNow + 3000), 50);
        }
        assert_int_equal(zone->clients(), 20);
    }
}

void test_a_reminder_comes_once_in_its_time_whoever_asks(void**) {
    const Memory memory(sizeof(Shared));
    auto* shared = memory.as<Shared>();
    const Memory more(sizeof(Reminder));
    auto* reminder = more.as<Reminder>();
    together([&](unsigned) {
        for (unsigned i = 0; i < 60; i++) {
            shared->meeting.join(kProcesses);
            for (unsigned j = 0; j < 10; j++) {
                shared->admitted[i] += reminder->is_due(kNow + i * kMinute + j, kMinute - 10) ? 1 : 0;
            }
        }
        return 0;
    });
    for (unsigned i = 0; i < 60; i++) {
        assert_int_equal(shared->admitted[i], 1);
    }
}

// A state at the end of readable memory, which another process writes.
void test_a_state_that_is_being_written_can_be_weighed(void**) {
    constexpr std::size_t kPage = 4096;
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const bool at_end : {false, true}) {
            const Memory memory(3 * kPage);
            const Memory shared(sizeof(Meeting));
            auto* bytes = memory.as<unsigned char>();
            const Policy written = policy_of(algorithm, "100r/m");
            const Policy lowered = policy_of(algorithm, "3r/m");
            const StateLayout layout = layout_of(written);
            const std::size_t size = words_of(layout) * 8;
            auto* state = reinterpret_cast<std::uint64_t*>(at_end ? bytes + 2 * kPage - size : bytes + kPage);
            Child writer([&] {
                shared.as<Meeting>()->join(2);
                for (;;) {
                    Check check;
                    std::memset(state, 0, size);
                    check.evaluate(written, layout, state, kNow, 5);
                    check.charge(state);
                }
                return 0;
            });
            Child reader([&] {
                mprotect(bytes, kPage, PROT_NONE);
                mprotect(bytes + 2 * kPage, kPage, PROT_NONE);
                shared.as<Meeting>()->join(2);
                unsigned changes = 0;
                std::uint64_t last = 0;
                for (unsigned i = 0; i < 100'000'000 && (i < 100'000 || changes < 4); i++) {
                    const std::uint64_t weight = weight_of(lowered, layout, state, kNow);
                    changes += weight != last ? 1 : 0;
                    last = weight;
                }
                return changes < 4 ? 1 : 0;
            });
            assert_int_equal(reader.wait(), 0);
        }
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_one_client_of_many_processes_gets_exactly_its_limit),
        cmocka_unit_test(test_fifty_new_clients_of_many_processes_get_exactly_their_limits),
        cmocka_unit_test(test_new_clients_that_take_the_slots_of_old_ones_get_exactly_their_limits),
        cmocka_unit_test(test_new_clients_that_crowd_one_set_get_exactly_their_limits),
        cmocka_unit_test(test_long_contention_for_one_client_loses_no_count),
        cmocka_unit_test(test_groups_are_charged_to_all_zones_or_none_whoever_comes_when),
        cmocka_unit_test(test_an_old_and_a_new_rate_share_a_zone),
        cmocka_unit_test(test_a_reminder_comes_once_in_its_time_whoever_asks),
        cmocka_unit_test(test_a_state_that_is_being_written_can_be_weighed),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
