// One of the processes that share memory leads; after its end another one does.
#include "memory/leader.h"

#include <memory>
#include <vector>

#include "processes.h"

namespace rate_limit {
namespace {

using Lead = Leader::Lead;

Micros now = 1000 * kSecond;
std::uint32_t dead = 0;  // this process is
unsigned questions = 0;  // whether a process is alive

Process host_number(std::uint32_t number) {
    return {number,
            [](std::uint32_t process) {
                questions++;
                return process != dead;
            },
            yield_to_others, [] { return now; }};
}

const Process kFirst = host_number(11);
const Process kSecondHost = host_number(22);

void set_up() {
    dead = 0;
    questions = 0;
}

void test_who_asks_first_leads(void**) {
    set_up();
    Leader leader;
    assert_int_equal(leader.lead(kFirst), Lead::kNew);
    assert_int_equal(leader.lead(kFirst), Lead::kYes);
    assert_int_equal(leader.lead(kSecondHost), Lead::kNo);
    assert_int_equal(leader.lead(kFirst), Lead::kYes);
}

void test_memory_that_is_all_zero_has_no_leader(void**) {
    set_up();
    alignas(Leader) unsigned char memory[sizeof(Leader)] = {};
    auto* leader = reinterpret_cast<Leader*>(memory);
    assert_int_equal(leader->lead(kSecondHost), Lead::kNew);
    assert_int_equal(leader->lead(kFirst), Lead::kNo);
}

void test_who_resigns_leaves_the_lead_to_the_next(void**) {
    set_up();
    Leader leader;
    leader.lead(kFirst);
    leader.resign(kSecondHost);  // it is not its to give
    assert_int_equal(leader.lead(kSecondHost), Lead::kNo);
    leader.resign(kFirst);
    leader.resign(kFirst);
    assert_int_equal(leader.lead(kSecondHost), Lead::kNew);
    leader.resign(kFirst);
    assert_int_equal(leader.lead(kFirst), Lead::kNo);
}

void test_a_leader_that_has_just_asked_is_believed_to_live(void**) {
    set_up();
    Leader leader;
    leader.lead(kFirst);
    dead = kFirst.self;
    now += kSecond - 1;
    assert_int_equal(leader.lead(kSecondHost), Lead::kNo);
    assert_int_equal(questions, 0);  // which costs something to find out
    now += 1;
    assert_int_equal(leader.lead(kSecondHost), Lead::kNew);
    assert_int_equal(questions, 1);
}

void test_a_leader_that_lives_keeps_the_lead_though_it_is_slow(void**) {
    set_up();
    Leader leader;
    leader.lead(kFirst);
    now += 59 * kSecond;
    assert_int_equal(leader.lead(kSecondHost), Lead::kNo);
    assert_int_equal(leader.lead(kFirst), Lead::kYes);
    now += 59 * kSecond;
    assert_int_equal(leader.lead(kSecondHost), Lead::kNo);
    // After a minute another process may have the id.
    now += 1 * kSecond;
    assert_int_equal(leader.lead(kSecondHost), Lead::kNew);
    assert_int_equal(leader.lead(kFirst), Lead::kNo);
}

void test_who_has_just_taken_the_lead_is_not_taken_for_silent(void**) {
    set_up();
    Leader leader;
    leader.lead(kFirst);
    now += 100 * kSecond;
    assert_int_equal(leader.lead(kSecondHost), Lead::kNew);
    dead = kSecondHost.self;
    now += kSecond / 2;
    assert_int_equal(leader.lead(kFirst), Lead::kNo);
}

void test_a_process_with_the_id_of_a_dead_leader_leads(void**) {
    set_up();
    Leader leader;
    leader.lead(kFirst);
    now += 100 * kSecond;
    assert_int_equal(leader.lead(host_number(kFirst.self)), Lead::kYes);
}

void test_of_many_processes_exactly_one_leads(void**) {
    constexpr unsigned kProcesses = 4;
    constexpr unsigned kRounds = 300;
    struct Shared {
        Meeting meeting;
        std::atomic<unsigned> leaders[kRounds];
        Leader leaders_of[kRounds];
    };
    const Memory memory(sizeof(Shared));
    auto* shared = memory.as<Shared>();
    std::vector<std::unique_ptr<Child>> children;
    for (unsigned i = 0; i < kProcesses; i++) {
        children.push_back(std::make_unique<Child>([&] {
            const Process self = this_process();
            for (unsigned round = 0; round < kRounds; round++) {
                shared->meeting.join(kProcesses);
                if (shared->leaders_of[round].lead(self) != Lead::kNo) {
                    shared->leaders[round]++;
                }
            }
            return 0;
        }));
    }
    for (const auto& child : children) {
        assert_int_equal(child->wait(), 0);
    }
    for (const auto& leaders : shared->leaders) {
        assert_int_equal(leaders.load(), 1);
    }
}

void test_of_many_processes_exactly_one_follows_a_dead_leader(void**) {
    constexpr unsigned kProcesses = 4;
    constexpr unsigned kRounds = 300;
    struct Shared {
        Meeting meeting;
        std::atomic<unsigned> leaders[kRounds];
        Leader leaders_of[kRounds];
    };
    const Memory memory(sizeof(Shared));
    auto* shared = memory.as<Shared>();
    set_up();
    dead = 33;
    for (Leader& leader : shared->leaders_of) {
        leader.lead(host_number(33));
    }
    now += 2 * kSecond;
    std::vector<std::unique_ptr<Child>> children;
    for (unsigned i = 0; i < kProcesses; i++) {
        children.push_back(std::make_unique<Child>([&] {
            const Process self = host_number(static_cast<std::uint32_t>(getpid()));
            for (unsigned round = 0; round < kRounds; round++) {
                shared->meeting.join(kProcesses);
                if (shared->leaders_of[round].lead(self) != Lead::kNo) {
                    shared->leaders[round]++;
                }
            }
            return 0;
        }));
    }
    for (const auto& child : children) {
        assert_int_equal(child->wait(), 0);
    }
    for (const auto& leaders : shared->leaders) {
        assert_int_equal(leaders.load(), 1);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_who_asks_first_leads),
        cmocka_unit_test(test_memory_that_is_all_zero_has_no_leader),
        cmocka_unit_test(test_who_resigns_leaves_the_lead_to_the_next),
        cmocka_unit_test(test_a_leader_that_has_just_asked_is_believed_to_live),
        cmocka_unit_test(test_a_leader_that_lives_keeps_the_lead_though_it_is_slow),
        cmocka_unit_test(test_who_has_just_taken_the_lead_is_not_taken_for_silent),
        cmocka_unit_test(test_a_process_with_the_id_of_a_dead_leader_leads),
        cmocka_unit_test(test_of_many_processes_exactly_one_leads),
        cmocka_unit_test(test_of_many_processes_exactly_one_follows_a_dead_leader),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
