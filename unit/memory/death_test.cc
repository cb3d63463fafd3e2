// A process that dies, stops or sleeps while it holds a lock does not block others.
#include <vector>

#include "processes.h"
#include "shared_zone.h"

namespace rate_limit {
namespace {

constexpr std::uint64_t kClient = 42;
constexpr std::uint64_t kOther = 43;

const Policy kTenAMinute = policy_of(Algorithm::kSlidingWindow, "10r/m");

unsigned waits = 0;
unsigned questions = 0;

// Counts how often a check waited for another process, and asked whether a process is alive.
Process counting_process() {
    Process process = this_process();
    waits = questions = 0;
    process.yield = [] {
        waits++;
        sched_yield();
    };
    process.alive = [](std::uint32_t process) {
        questions++;
        return process_is_alive(process);
    };
    return process;
}

Micros waited = 0;
Micros others_run = 0;

// A process whose clock moves only in yield(), by a fixed time.
Process timed_process(Micros each_time = 1000) {
    Process process = this_process();
    waited = 0;
    others_run = each_time;
    process.yield = [] { waited += others_run; };
    process.clock = [] { return waited; };
    return process;
}

// A process that locks the slot of a client and sleeps until it is woken or killed.
class Holder {
  public:
    Holder(const Zone& zone, std::uint64_t client)
        : child_([&zone, client, this] {
              const Slot slot = zone->acquire(client, zone.policy(), kNow, this_process());
              if (slot.state == nullptr || !holds_.give() || !may_go_.await()) {
                  return 1;
              }
              zone->keep(slot, this_process());
              return 0;
          }) {
        assert_true(holds_.await());
    }

    void let_go() {
        assert_true(may_go_.give());
        assert_int_equal(child_.wait(), 0);
    }

    Child& process() { return child_; }

  private:
    Signal holds_;
    Signal may_go_;
    Child child_;
};

void test_the_client_of_a_dead_process_goes_on_with_what_it_had_used(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Zone zone(policy_of(algorithm, "10r/m"));
        zone.request(kClient, kNow, 4);
        Holder holder(zone, kClient);
        holder.process().kill();
        holder.process().wait();
        TableLimit limit = zone.limit(kClient);
        assert_int_equal(check(&limit, 1, kNow, counting_process()), Verdict::kAdmitted);
        assert_int_equal(limit.decision.remaining, 5);
        assert_int_equal(questions, 1);
        assert_true(waits < 10);
        assert_int_equal(check(&limit, 1, kNow, counting_process()), Verdict::kAdmitted);
        assert_int_equal(questions + waits, 0);
        assert_int_equal(zone->clients(), 1);
    }
}

void test_a_dead_process_that_nobody_has_reaped_blocks_for_less_than_a_second(void**) {
    const Zone zone(kTenAMinute);
    zone.request(kClient, kNow, 4);
    Holder holder(zone, kClient);
    holder.process().kill();
    holder.process().await_death();
    TableLimit limit = zone.limit(kClient);
    assert_int_equal(check(&limit, 1, kNow, timed_process()), Verdict::kAdmitted);
    assert_true(waited < kSecond);
    assert_int_equal(zone.used(kClient), 5);
}

void test_a_busy_machine_does_not_prolong_the_wait(void**) {
    for (const Micros each_time : {10, 1000, 4000, 40'000}) {
        const Zone zone(kTenAMinute);
        Holder holder(zone, kClient);
        holder.process().kill();
        holder.process().await_death();
        TableLimit limit = zone.limit(kClient);
        assert_int_equal(check(&limit, 1, kNow, timed_process(each_time)), Verdict::kAdmitted);
        assert_true(waited < kSecond);
    }
}

void test_a_client_whose_process_died_before_it_was_entered_is_new(void**) {
    const Zone zone(kTenAMinute);
    Holder holder(zone, kClient);
    assert_int_equal(zone->clients(), 1);
    holder.process().kill();
    holder.process().wait();
    assert_int_equal(zone.used(kClient), 0);
    assert_int_equal(zone->clients(), 0);
    assert_int_equal(zone.request(kClient), Verdict::kAdmitted);
    assert_int_equal(zone.used(kClient), 1);
    assert_int_equal(zone->clients(), 1);
}

void test_what_a_dead_process_had_written_of_a_new_client_is_forgotten(void**) {
    const Zone zone(kTenAMinute);
    Child child([&] {
        const Slot slot = zone->acquire(kClient, zone.policy(), kNow, this_process());
        slot.state[0] = slot.state[1] = 0x123456789abcdef;
        return 0;
    });
    assert_int_equal(child.wait(), 0);
    assert_int_equal(zone.admitted(kClient, 20), 10);
}

// Fills a zone of one set with slots whose lock holders die, for new or known clients.
void occupy_with_the_dead(const Zone& zone, bool known) {
    for (unsigned i = 0; i < 16; i++) {
        if (known) {
            zone.request(client_number(i), kNow, 3);
        }
    }
    for (unsigned i = 0; i < 16; i++) {
        Child child([&] {
            const Slot slot = zone->acquire(client_number(i), zone.policy(), kNow, this_process());
            return slot.state != nullptr && slot.fresh == !known ? 0 : 1;
        });
        assert_int_equal(child.wait(), 0);
    }
}

void test_slots_that_dead_processes_held_find_new_clients(void**) {
    for (const bool known : {false, true}) {
        const Zone zone = small_zone(kTenAMinute, 1);
        occupy_with_the_dead(zone, known);
        for (unsigned i = 0; i < 16; i++) {
            assert_int_equal(zone.request(client_number(100 + i)), Verdict::kAdmitted);
        }
        assert_int_equal(zone->clients(), 16);
    }
}

void test_a_slot_left_locked_without_a_client_finds_a_new_one(void**) {
    const Zone zone = small_zone(kTenAMinute, 1);
    for (unsigned i = 0; i < 16; i++) {
        Child child([&] {
            *zone->acquire(client_number(i), zone.policy(), kNow, this_process()).hash = 0;
            return 0;
        });
        assert_int_equal(child.wait(), 0);
    }
    assert_int_equal(zone->clients(), 0);
    for (unsigned i = 0; i < 16; i++) {
        assert_int_equal(zone.request(client_number(100 + i)), Verdict::kAdmitted);
    }
    assert_int_equal(zone->clients(), 16);
}

void test_a_lock_that_bears_ones_own_id_was_left_by_a_dead_process(void**) {
    const Zone zone(kTenAMinute);
    zone.request(kClient, kNow, 4);
    zone->acquire(kClient, zone.policy(), kNow, this_process());
    zone->acquire(kOther, zone.policy(), kNow, this_process());
    TableLimit limit = zone.limit(kClient);
    assert_int_equal(check(&limit, 1, kNow, counting_process()), Verdict::kAdmitted);
    assert_int_equal(waits, 0);
    assert_int_equal(zone.used(kClient), 5);
}

void test_a_sleeping_holder_keeps_nobody_else_waiting(void**) {
    const Zone zone = small_zone(kTenAMinute, 1);
    for (unsigned i = 0; i < 8; i++) {
        zone.request(client_number(i), kNow, 2);
    }
    Holder known(zone, client_number(3));
    Holder fresh(zone, kClient);
    const Process process = counting_process();
    for (unsigned round = 0; round < 100; round++) {
        for (unsigned i = 0; i < 30; i++) {
            TableLimit limit = zone.limit(client_number(i == 3 ? 99 : i), round % 2);
            assert_int_not_equal(check(&limit, 1, kNow, process), Verdict::kBusy);
        }
    }
    assert_int_equal(waits + questions, 0);
    known.let_go();
    fresh.let_go();
    assert_int_equal(zone.used(client_number(3)), 2);
}

// A process that stops itself while it holds a lock, and unlocks when it is continued.
class Stopper {
  public:
    Stopper(const Zone& zone, bool drops)
        : child_([&zone, drops] {
              const Slot slot = zone->acquire(kClient, zone.policy(), kNow, this_process());
              raise(SIGSTOP);
              if (drops) {
                  zone->drop(slot, this_process());
              } else {
                  zone->keep(slot, this_process());
              }
              return 0;
          }) {
        child_.await_stop();
    }

    void go_on() {
        child_.send(SIGCONT);
        assert_int_equal(child_.wait(), 0);
    }

  private:
    Child child_;
};

void test_a_stopped_process_that_goes_on_leaves_the_lock_of_who_took_over(void**) {
    for (const bool known : {false, true}) {
        for (const bool drops : {false, true}) {
            const Zone zone(kTenAMinute);
            zone.request(known ? kClient : kOther, kNow, 4);
            Stopper stopped(zone, drops);
            const Slot slot = zone->acquire(kClient, zone.policy(), kNow, timed_process());
            assert_true(waited < kSecond);
            assert_int_equal(slot.fresh, !known);
            stopped.go_on();
            assert_int_equal(*slot.lock & 0x7fffffff, getpid());
            assert_int_equal(*slot.hash, kClient);
            zone->keep(slot, this_process());
            assert_int_equal(*slot.lock, 0);
            assert_int_equal(zone.used(kClient), known ? 4 : 0);
        }
    }
}

void test_children_killed_at_any_moment_hold_up_nobody(void**) {
    const Zone zones[2] = {small_zone(kTenAMinute, 1),
                           small_zone(policy_of(Algorithm::kSlidingLog, "5r/m"), 1)};
    const auto ask = [&](unsigned i, Micros now, const Process& process) {
        const std::uint64_t client = client_number(i % 3);
        TableLimit both[2] = {zones[0].limit(client, i % 7 == 0 ? 0 : 1),
                              zones[1].limit(client_number(i % 20))};
        return check(both, 2, now, process);
    };
    Micros longest = 0;
    for (unsigned round = 0; round < 200; round++) {
        const Micros start = kNow + round * 10 * kSecond;
        Signal started;
        Child child([&] {
            const Process process = this_process();
            started.give();
            for (unsigned i = 0;; i++) {
                ask(i, start + i, process);
            }
            return 0;
        });
        assert_true(started.await());
        const Process process = this_process();
        for (unsigned i = 0; i < 20 + round * 7 % 50; i++) {
            ask(i, start + i, process);
        }
        child.kill();
        child.wait();
        const Process timed = timed_process();
        for (unsigned i = 0; i < 60; i++) {
            assert_int_not_equal(ask(i, start + i, timed), Verdict::kBusy);
        }
        longest = std::max(longest, waited);
    }
    assert_true(longest < kSecond);
    for (const Zone& zone : zones) {
        for (unsigned i = 0; i < 20; i++) {
            TableLimit limit = zone.limit(client_number(i), 0);
            check(&limit, 1, kNow, counting_process());
        }
        for (unsigned i = 0; i < 20; i++) {
            TableLimit limit = zone.limit(client_number(i), 0);
            check(&limit, 1, kNow, counting_process());
            assert_int_equal(waits + questions, 0);
        }
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_client_of_a_dead_process_goes_on_with_what_it_had_used),
        cmocka_unit_test(test_a_dead_process_that_nobody_has_reaped_blocks_for_less_than_a_second),
        cmocka_unit_test(test_a_busy_machine_does_not_prolong_the_wait),
        cmocka_unit_test(test_a_client_whose_process_died_before_it_was_entered_is_new),
        cmocka_unit_test(test_what_a_dead_process_had_written_of_a_new_client_is_forgotten),
        cmocka_unit_test(test_slots_that_dead_processes_held_find_new_clients),
        cmocka_unit_test(test_a_slot_left_locked_without_a_client_finds_a_new_one),
        cmocka_unit_test(test_a_lock_that_bears_ones_own_id_was_left_by_a_dead_process),
        cmocka_unit_test(test_a_sleeping_holder_keeps_nobody_else_waiting),
        cmocka_unit_test(test_a_stopped_process_that_goes_on_leaves_the_lock_of_who_took_over),
        cmocka_unit_test(test_children_killed_at_any_moment_hold_up_nobody),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
