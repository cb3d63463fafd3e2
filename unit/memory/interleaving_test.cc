// A process is interrupted between any two instructions of a check: it dies, stops, or continues after
// another process has made the same check.
#if defined(__x86_64__)

#include "stepper.h"

namespace rate_limit {
namespace {

constexpr std::uint64_t kClient = 42;
constexpr Micros kLater = kNow + 10 * kMinute;

// What a check finds in the table: its client, a free slot, or only slots of other clients, one of which is
// evicted.
enum class Finds { kClient, kFreeSlot, kRestedClients, kUsedClients };
constexpr Finds kEveryFind[] = {Finds::kClient, Finds::kFreeSlot, Finds::kRestedClients, Finds::kUsedClients};

Zone zone_where(Finds finds) {
    return small_zone(policy_of(Algorithm::kSlidingWindow, "10r/m"), finds == Finds::kFreeSlot ? 3 : 1);
}

void prepare(const Zone& zone, Finds finds) {
    zone.clear();
    if (finds == Finds::kClient) {
        zone.request(kClient, kLater, 2);
    } else if (finds != Finds::kFreeSlot) {
        for (unsigned i = 0; i < 16; i++) {
            zone.request(client_number(i), finds == Finds::kRestedClients ? kNow : kLater, 3);
        }
    }
}

std::uint32_t used_before(Finds finds) { return finds == Finds::kClient ? 2 : 0; }

std::uint32_t the_dead = 0;

Process survivor() {
    Process process = this_process();
    process.alive = [](std::uint32_t process) { return process != the_dead; };
    return process;
}

void test_a_process_may_die_after_any_instruction_of_a_check(void**) {
    const Memory memory(sizeof(Progress));
    for (const Finds finds : kEveryFind) {
        const Zone zone = zone_where(finds);
        const Zone copy = zone_where(finds);
        prepare(zone, finds);
        const Stepper dying(zone, kClient, kLater, memory.as<Progress>());
        the_dead = dying.id();
        unsigned instructions = 0;
        for (; !dying.done(); instructions++) {
            assert_true(instructions < 1'000'000);
            dying.step();
            std::memcpy(copy.memory().at(), zone.memory().at(), zone.memory().size());
            TableLimit limit = copy.limit(kClient);
            assert_int_equal(check(&limit, 1, kLater, survivor()), Verdict::kAdmitted);
            const std::uint32_t used = 10 - limit.decision.remaining;
            assert_in_range(used, used_before(finds) + 1, used_before(finds) + 2);
            assert_int_equal(copy.used(kClient, kLater), used);
            for (unsigned i = 0; i < 16; i++) {
                TableLimit other = copy.limit(client_number(100 + i), 5);
                assert_int_equal(check(&other, 1, kLater, made_up_process(1)), Verdict::kAdmitted);
            }
        }
        assert_true(instructions > 50);
    }
}

Stepper* interrupted = nullptr;

// Continues the interrupted process as soon as another process waits for it.
Process waking_process() {
    Process process = this_process();
    process.yield = [] {
        if (!interrupted->done()) {
            interrupted->go_on();
            interrupted->answer();
        }
    };
    return process;
}

void finish(Stepper* stepper) {
    if (!stepper->done()) {
        stepper->go_on();
    }
    assert_int_equal(stepper->answer(), Verdict::kAdmitted);
}

void assert_is_there_once(const Zone& zone, std::uint64_t client) {
    const Slot slot = zone->find(client, this_process());
    assert_non_null(slot.state);
    zone->drop(slot, this_process());
    assert_null(zone->find(client, this_process()).state);
}

void test_two_processes_that_enter_one_client_at_once_enter_it_once(void**) {
    const Memory memory(sizeof(Progress));
    for (const Finds finds : kEveryFind) {
        const Zone zone = zone_where(finds);
        prepare(zone, finds);
        for (const Moment& moment : moments_of(zone, kClient, kLater, memory.as<Progress>())) {
            prepare(zone, finds);
            Stepper stepper(zone, kClient, kLater, memory.as<Progress>());
            stepper.run_to(moment);
            interrupted = &stepper;
            TableLimit limit = zone.limit(kClient);
            assert_int_equal(check(&limit, 1, kLater, waking_process()), Verdict::kAdmitted);
            finish(&stepper);
            assert_int_equal(zone.used(kClient, kLater), used_before(finds) + 2);
            assert_is_there_once(zone, kClient);
        }
    }
}

void test_a_client_that_is_used_while_another_looks_for_a_slot_keeps_its_count(void**) {
    constexpr std::uint64_t kRested = 77;
    const Memory memory(sizeof(Progress));
    const Zone zone = zone_where(Finds::kUsedClients);
    const auto prepare_one_rested = [&] {
        zone.clear();
        for (unsigned i = 0; i < 15; i++) {
            zone.request(client_number(i), kLater, 3);
        }
        zone.request(kRested, kNow, 3);
    };
    prepare_one_rested();
    for (const Moment& moment : moments_of(zone, kClient, kLater, memory.as<Progress>())) {
        prepare_one_rested();
        Stepper stepper(zone, kClient, kLater, memory.as<Progress>());
        stepper.run_to(moment);
        interrupted = &stepper;
        TableLimit limit = zone.limit(kRested, 9);
        assert_int_equal(check(&limit, 1, kLater, waking_process()), Verdict::kAdmitted);
        finish(&stepper);
        assert_int_equal(zone.used(kRested, kLater), 9);
        assert_is_there_once(zone, kRested);
    }
}

void test_who_died_while_it_entered_a_client_does_not_hold_up_another_that_enters_it(void**) {
    const Memory memory(sizeof(Progress));
    const Zone zone = small_zone(policy_of(Algorithm::kSlidingWindow, "10r/m"), 1);
    const Slot first = zone->acquire(1, zone.policy(), kLater, this_process());
    Child dying([&] { return zone->acquire(2, zone.policy(), kLater, this_process()).fresh ? 0 : 1; });
    assert_int_equal(dying.wait(), 0);
    zone->drop(first, this_process());
    // The next process inserts the client in the first slot; the dead process did so in the second.
    Stepper stepper(zone, kClient, kLater, memory.as<Progress>());
    while (*first.hash != kClient) {
        assert_false(stepper.done());
        stepper.step();
    }
    assert_int_equal(first.hash[1], 2);
    first.hash[1] = kClient;
    stepper.go_on();
    assert_int_equal(stepper.answer(), Verdict::kAdmitted);
    assert_int_equal(first.lock[1], 0);
    assert_int_equal(zone.used(kClient, kLater), 1);
    assert_is_there_once(zone, kClient);
}

Micros hurried = 0;

// Does not wait for a stopped process.
Process hurried_process() {
    Process process = this_process();
    process.clock = [] { return hurried += kSecond; };
    return process;
}

void test_a_process_stopped_after_any_instruction_leaves_the_lock_of_who_took_over(void**) {
    const Memory memory(sizeof(Progress));
    for (const Finds finds : kEveryFind) {
        const Zone zone = zone_where(finds);
        prepare(zone, finds);
        for (const Moment& moment : moments_of(zone, kClient, kLater, memory.as<Progress>())) {
            prepare(zone, finds);
            Stepper stepper(zone, kClient, kLater, memory.as<Progress>());
            stepper.run_to(moment);
            const Slot slot = zone->acquire(kClient, zone.policy(), kLater, hurried_process());
            assert_non_null(slot.state);
            const std::uint32_t lock = *slot.lock;
            stepper.go_on();
            for (const double start = seconds(); !stepper.done() && !stepper.waiting();) {
                assert_true(seconds() - start < 10);
                sched_yield();
            }
            assert_int_equal(*slot.lock, lock);
            zone->keep(slot, this_process());
            assert_int_not_equal(stepper.answer(), Verdict::kBusy);
            assert_int_equal(*slot.lock, 0);
            assert_int_equal(zone.request(kClient, kLater), Verdict::kAdmitted);
        }
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_process_may_die_after_any_instruction_of_a_check),
        cmocka_unit_test(test_two_processes_that_enter_one_client_at_once_enter_it_once),
        cmocka_unit_test(test_a_client_that_is_used_while_another_looks_for_a_slot_keeps_its_count),
        cmocka_unit_test(test_who_died_while_it_entered_a_client_does_not_hold_up_another_that_enters_it),
        cmocka_unit_test(test_a_process_stopped_after_any_instruction_leaves_the_lock_of_who_took_over),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

#else

// Requires a processor whose registers the test knows.
int main() { return 0; }

#endif
