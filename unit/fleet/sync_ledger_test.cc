// The batches of a ledger: their entries, their sequence numbers, retries, and which process sends.
#include <algorithm>
#include <set>

#include "ledgers.h"

namespace rate_limit {
namespace {

void test_without_unsent_counts_nothing_is_sent_and_no_slot_touched(void**) {
    for (const Guard guard : {Guard::kSender, Guard::kClient}) {
        Scene scene(kPolicy, Mode::kSync, guard, 1);
        // Locked slots: a ledger that touches one would wait forever.
        for (unsigned i = 0; i < 16; i++) {
            scene.zone->acquire(client_number(i), kPolicy, kNow, made_up_process(1 + i));
        }
        for (unsigned round = 0; round < 3; round++) {
            assert_false(scene.begin());
            assert_int_equal(scene.batch.entries.capacity(), 0);
        }
        assert_int_equal(scene.zone->unsent_counts().next_sequence(), 1);
    }
}

void test_a_batch_has_clients_and_amounts(void**) {
    Scene scene;
    use(scene.zone, "alice", 3);
    use(scene.zone, "bob");
    use(scene.zone, "alice", 4);
    assert_false(scene.next());
    assert_true(scene.begin());
    assert_content(scene.batch, "alice=7 bob=1 ");
    assert_int_equal(scene.batch.sender, scene.zone->unsent_counts().sender());
    for (const SyncEntry& entry : scene.batch.entries) {
        assert_int_equal(entry.client, scene.zone->hash(entry.name()));
        assert_int_equal(entry.rates.size, 1);
        assert_int_equal(entry.rates.rates[0].count, 1000);
        Policy room;
        const Policy& policy = scene.sync_ledger.policy_of(entry, &room);
        assert_int_equal(policy.rates.rates[0].period, kHour);
        assert_true(policy.debt);
    }
    assert_int_equal(unsent_of(scene.zone, "alice").unsent, 0);
    assert_int_equal(unsent_of(scene.zone, "alice").sending, 7);
    assert_true(unsent_of(scene.zone, "alice").marked);
    scene.confirm_all();
    assert_int_equal(unsent_of(scene.zone, "alice").sending, 0);
    assert_int_equal(marks(scene.zone.table()), 0);
    assert_false(scene.next());
    assert_false(scene.begin());
}

void test_a_round_has_each_client_once_in_batches_of_at_most_so_many(void**) {
    Scene scene;
    for (unsigned i = 0; i < 50; i++) {
        use(scene.zone, name_of(i));
    }
    std::set<std::string> seen;
    unsigned batches = 0;
    scene.sync_ledger.begin_round();
    while (scene.next(7)) {
        batches++;
        assert_int_equal(scene.batch.sequence, batches);
        assert_in_range(scene.batch.entries.size(), 1, 7);
        for (const SyncEntry& entry : scene.batch.entries) {
            assert_true(seen.insert(std::string(entry.name())).second);
        }
        scene.confirm_all();
        // A client with new requests belongs to the next round.
        for (const SyncEntry& entry : scene.batch.entries) {
            use(scene.zone, entry.name());
        }
    }
    assert_int_equal(batches, 8);
    assert_int_equal(seen.size(), 50);
    sync(&scene.sync_ledger, &scene.ledger);
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(scene.ledger.charged(name_of(i)), 2);
    }
}

void test_an_unfinished_round_continues(void**) {
    Scene scene;
    for (unsigned i = 0; i < 20; i++) {
        use(scene.zone, name_of(i));
    }
    std::set<std::string> seen;
    for (unsigned round = 0; round < 20; round++) {
        assert_true(scene.begin(1));
        seen.insert(std::string(scene.batch.entries[0].name()));
        scene.confirm_all();
        use(scene.zone, scene.batch.entries[0].name());
    }
    assert_int_equal(seen.size(), 20);
}

void test_sequence_numbers_continue_after_another_ledger(void**) {
    Scene scene;
    for (unsigned i = 1; i < 10; i++) {
        SyncLedger other(&scene.zone.table(), kPolicy, Mode::kSync, Guard::kSender, process());
        use(scene.zone, "alice");
        other.begin_round();
        assert_true(other.next(kNow, kMany, &scene.batch));
        assert_int_equal(scene.batch.sequence, i);
        confirm(&other, scene.batch, scene.ledger.apply(scene.batch, kNow), kNow);
    }
    assert_int_equal(scene.ledger.charged("alice"), 9);
}

void test_one_batch_at_a_time_is_in_flight_where_numbers_must_arrive_in_order(void**) {
    Scene scene;
    for (unsigned i = 0; i < 4; i++) {
        use(scene.zone, name_of(i));
    }
    assert_true(scene.begin(2));
    SyncBatch other;
    assert_false(scene.sync_ledger.next(kNow, 2, &other));
    scene.sync_ledger.begin_round();
    assert_false(scene.sync_ledger.next(kNow, 2, &other));
    const Ledger::Answer answer = scene.ledger.apply(scene.batch, kNow);
    scene.sync_ledger.confirm(scene.batch, 0, answer[0].data(), kNow, 0);
    assert_false(scene.sync_ledger.next(kNow, 2, &other));
    scene.sync_ledger.confirm(scene.batch, 1, answer[1].data(), kNow, 0);
    assert_true(scene.sync_ledger.next(kNow, 2, &other));
    assert_int_equal(other.sequence, 2);
}

void test_a_failed_batch_is_retried_first_and_unchanged(void**) {
    Scene scene;
    for (unsigned i = 0; i < 6; i++) {
        use(scene.zone, name_of(i), 1 + i);
    }
    assert_true(scene.begin(3));
    const std::string before = content(scene.batch);
    for (unsigned attempt = 0; attempt < 3; attempt++) {
        scene.sync_ledger.failed(scene.batch);
        assert_false(scene.next(3));
        // More requests are admitted, of clients in the batch and of others.
        for (unsigned i = 0; i < 9; i++) {
            use(scene.zone, name_of(i));
        }
        assert_true(scene.begin(1));
        assert_int_equal(scene.batch.sequence, 1);
        assert_content(scene.batch, before.c_str());
    }
    scene.confirm_all();
    sync(&scene.sync_ledger, &scene.ledger);
    sync(&scene.sync_ledger, &scene.ledger);
    for (unsigned i = 0; i < 9; i++) {
        assert_int_equal(scene.ledger.charged(name_of(i)), (i < 6 ? 1 + i : 0) + 3);
    }
    assert_int_equal(marks(scene.zone.table()), 0);
}

void test_where_each_client_has_a_guard_many_batches_are_in_flight(void**) {
    Scene scene(kPolicy, Mode::kSync, Guard::kClient);
    std::vector<SyncBatch> in_flight;
    for (unsigned i = 0; i < 10; i++) {
        use(scene.zone, name_of(i), 1 + i);
    }
    scene.sync_ledger.begin_round();
    while (scene.next()) {
        assert_int_equal(scene.batch.entries.size(), 1);
        in_flight.push_back(scene.batch);
        use(scene.zone, scene.batch.entries[0].name());
    }
    assert_int_equal(in_flight.size(), 10);
    // Half of the batches fail, which does not block the others; these are confirmed in any order.
    std::reverse(in_flight.begin(), in_flight.end());
    for (unsigned i = 0; i < 10; i++) {
        if (i % 2 == 0) {
            confirm(&scene.sync_ledger, in_flight[i], scene.ledger.apply(in_flight[i], kNow), kNow);
        } else {
            scene.sync_ledger.failed(in_flight[i]);
        }
    }
    use(scene.zone, "late");
    std::set<std::uint64_t> again;
    scene.sync_ledger.begin_round();
    while (scene.next()) {
        if (scene.batch.sequence <= 10) {
            again.insert(scene.batch.sequence);
        }
        scene.confirm_all();
    }
    assert_int_equal(again.size(), 5);
    assert_int_equal(scene.ledger.charged("late"), 1);
    sync(&scene.sync_ledger, &scene.ledger);
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(scene.ledger.charged(name_of(i)), 2 + i);
    }
}

void test_a_batch_that_another_ledger_left_in_flight_is_retried_unchanged(void**) {
    for (const bool applied : {false, true}) {
        Scene scene;
        use(scene.zone, "alice", 3);
        use(scene.zone, "bob", 4);
        assert_true(scene.begin());
        if (applied) {
            scene.ledger.apply(scene.batch, kNow);
        }
        use(scene.zone, "alice", 5);
        use(scene.zone, "carol", 1);
        SyncLedger next(&scene.zone.table(), kPolicy, Mode::kSync, Guard::kSender, process());
        SyncBatch again;
        next.begin_round();
        assert_true(next.next(kNow, 1, &again));
        assert_int_equal(again.sequence, 1);
        assert_int_equal(again.sender, scene.batch.sender);
        assert_content(again, "alice=3 bob=4 ");
        confirm(&next, again, scene.ledger.apply(again, kNow), kNow);
        sync(&next, &scene.ledger);
        assert_int_equal(scene.ledger.charged("alice"), 8);
        assert_int_equal(scene.ledger.charged("bob"), 4);
        assert_int_equal(scene.ledger.charged("carol"), 1);
        assert_int_equal(scene.zone.used(scene.zone->hash("alice")), 8);
    }
}

void test_retries_come_in_the_order_of_their_numbers(void**) {
    for (const Guard guard : {Guard::kSender, Guard::kClient}) {
        Scene scene(kPolicy, Mode::kSync, guard);
        for (unsigned i = 0; i < 30; i++) {
            use(scene.zone, name_of(i));
            send(scene.zone.table(), scene.zone->hash(name_of(i)), 9, 1 + i * 7 % 10);
        }
        std::uint64_t last = 0;
        unsigned members = 0;
        scene.sync_ledger.begin_round();
        while (scene.next()) {
            assert_int_equal(scene.batch.sender, 9);
            assert_true(scene.batch.sequence >= last);
            assert_int_equal(scene.batch.entries.size(), guard == Guard::kSender ? 3 : 1);
            last = scene.batch.sequence;
            members += scene.batch.entries.size();
            scene.confirm_all();
        }
        assert_int_equal(last, 10);
        assert_int_equal(members, 30);
    }
}

void test_a_retry_leaves_out_confirmed_entries(void**) {
    Scene scene;
    use(scene.zone, "alice", 3);
    use(scene.zone, "bob", 4);
    assert_true(scene.begin());
    const Ledger::Answer answer = scene.ledger.apply(scene.batch, kNow);
    const std::size_t bob = scene.batch.entries[0].name() == "bob" ? 0 : 1;
    scene.sync_ledger.confirm(scene.batch, bob, answer[bob].data(), kNow, 0);
    scene.sync_ledger.failed(scene.batch);
    assert_true(scene.begin());
    assert_int_equal(scene.batch.sequence, 1);
    assert_content(scene.batch, "alice=3 ");
    scene.confirm_all();
    assert_int_equal(scene.ledger.charged("alice"), 3);
    assert_int_equal(scene.ledger.charged("bob"), 4);
    assert_int_equal(scene.zone.used(scene.zone->hash("alice")), 3);
}

// Fills the only set of a zone, so that all earlier clients are evicted.
void forget_all(const Zone& zone, std::uint64_t cost) {
    for (unsigned i = 0; i < 16; i++) {
        use(zone, name_of(500 + i), cost);
    }
}

void test_a_client_that_is_evicted_while_in_flight_does_no_harm(void**) {
    Scene scene(kPolicy, Mode::kSync, Guard::kSender, 1);
    use(scene.zone, "alice", 3);
    use(scene.zone, "bob", 4);
    assert_true(scene.begin());
    const Ledger::Answer answer = scene.ledger.apply(scene.batch, kNow);
    forget_all(scene.zone, 100);
    assert_false(unsent_of(scene.zone, "alice").known);
    assert_int_equal(scene.zone->evictions(), 2);
    // One client comes back, in a slot that another client had.
    use(scene.zone, "alice", 200);
    confirm(&scene.sync_ledger, scene.batch, answer, kNow);
    assert_false(unsent_of(scene.zone, "bob").known);
    assert_int_equal(unsent_of(scene.zone, "alice").unsent, 200);
    assert_int_equal(scene.zone.used(scene.zone->hash("alice")), 200);
    sync(&scene.sync_ledger, &scene.ledger);
    assert_int_equal(scene.ledger.charged("alice"), 203);
    assert_int_equal(scene.zone.used(scene.zone->hash("alice")), 203);
}

void test_a_late_reply_to_an_older_batch_changes_nothing(void**) {
    Scene scene;
    use(scene.zone, "alice", 3);
    assert_true(scene.begin());
    const SyncBatch first = scene.batch;
    const Ledger::Answer early = scene.ledger.apply(first, kNow);
    scene.confirm_all();
    use(scene.zone, "alice", 4);
    assert_true(scene.begin());
    confirm(&scene.sync_ledger, first, early, kNow);
    assert_int_equal(unsent_of(scene.zone, "alice").sending, 4);
    assert_int_equal(scene.zone.used(scene.zone->hash("alice")), 7);
    SyncBatch foreign = scene.batch;
    foreign.sender++;
    confirm(&scene.sync_ledger, foreign, early, kNow);
    assert_int_equal(unsent_of(scene.zone, "alice").sending, 4);
}

void test_a_reply_reaches_a_client_that_has_moved_to_another_slot(void**) {
    Scene scene;
    use(scene.zone, "alice", 3);
    use(scene.zone, "bob", 5);
    assert_true(scene.begin());
    assert_int_equal(scene.batch.entries.size(), 2);
    const Ledger::Answer answer = scene.ledger.apply(scene.batch, kNow);
    // As if the clients had exchanged their slots.
    std::swap(scene.batch.entries[0].slot, scene.batch.entries[1].slot);
    scene.sync_ledger.confirm(scene.batch, 0, answer[0].data(), kNow, 0);
    const bool alice_first = scene.batch.entries[0].name() == "alice";
    assert_int_equal(unsent_of(scene.zone, "alice").sending, alice_first ? 0 : 3);
    assert_int_equal(unsent_of(scene.zone, "bob").sending, alice_first ? 5 : 0);
    scene.sync_ledger.confirm(scene.batch, 1, answer[1].data(), kNow, 0);
    assert_int_equal(unsent_of(scene.zone, "alice").sending, 0);
    assert_int_equal(unsent_of(scene.zone, "bob").sending, 0);
    assert_int_equal(scene.zone.used(scene.zone->hash("alice")), 3);
    assert_int_equal(scene.zone.used(scene.zone->hash("bob")), 5);
}

void test_a_failed_batch_of_evicted_clients_is_dropped(void**) {
    Scene scene(kPolicy, Mode::kSync, Guard::kSender, 1);
    use(scene.zone, "alice", 3);
    assert_true(scene.begin());
    scene.sync_ledger.failed(scene.batch);
    forget_all(scene.zone, 100);
    assert_true(scene.begin());
    assert_int_equal(scene.batch.sequence, 2);
    assert_int_equal(scene.batch.entries.size(), 16);
}

void test_a_retry_leaves_out_clients_that_are_in_another_batch(void**) {
    Scene scene(kPolicy, Mode::kSync, Guard::kClient, 1);
    use(scene.zone, "alice", 3);
    assert_true(scene.begin());
    const SyncBatch first = scene.batch;
    assert_false(scene.next());
    forget_all(scene.zone, 100);
    use(scene.zone, "alice", 200);
    // All are in flight, alice for the second time.
    scene.sync_ledger.begin_round();
    while (scene.next()) {
    }
    assert_int_equal(unsent_of(scene.zone, "alice").sending, 200);
    scene.sync_ledger.failed(first);
    assert_false(scene.begin());
}

void test_a_client_without_a_name_is_not_sent(void**) {
    Scene scene;
    TableLimit limit = limit_of(scene.zone, "");
    check(&limit, 1, kNow, process());
    assert_int_equal(marks(scene.zone.table()), 1);
    assert_false(scene.begin());
    assert_int_equal(marks(scene.zone.table()), 0);
}

void test_overshoot_is_summed_in_the_table(void**) {
    Scene scene(kPolicy, Mode::kFallback);
    use(scene.zone, "alice", 3);
    use(scene.zone, "bob", 3);
    assert_true(scene.begin());
    scene.sync_ledger.confirm(scene.batch, 0, nullptr, kNow, 4'000'000'000);
    scene.sync_ledger.confirm(scene.batch, 1, nullptr, kNow, 4'000'000'000);
    assert_int_equal(scene.zone->overshoot(), 8'000'000'000);
}

void test_one_process_sends_and_another_after_its_death(void**) {
    const Zone zone = zone_with_unsent_counts(kPolicy, 4);
    Ledger ledger(kPolicy, layout_of(kPolicy), Guard::kSender);
    static Micros steady = 1000 * kSecond;
    steady = 1000 * kSecond;
    dead_process = 0;
    Process processes[3];
    for (unsigned i = 0; i < 3; i++) {
        processes[i] = host_number(1 + i);
        processes[i].clock = [] { return steady; };
    }
    SyncBatch batch;
    use(zone, "alice", 3);
    SyncLedger first(&zone.table(), kPolicy, Mode::kSync, Guard::kSender, processes[0]);
    SyncLedger second(&zone.table(), kPolicy, Mode::kSync, Guard::kSender, processes[1]);
    first.begin_round();
    assert_true(first.next(kNow, kMany, &batch));
    second.begin_round();
    assert_false(second.next(kNow, kMany, &batch));
    // The first process dies; its batch may have been applied.
    dead_process = processes[0].self;
    steady += 2 * kSecond;
    second.begin_round();
    assert_true(second.next(kNow, kMany, &batch));
    assert_int_equal(batch.sequence, 1);
    confirm(&second, batch, ledger.apply(batch, kNow), kNow);
    // The first process was not dead. It sends nothing while the second leads.
    use(zone, "bob", 2);
    first.begin_round();
    assert_false(first.next(kNow, kMany, &batch));
    {
        // A process that resigns lets another send at once.
        SyncLedger third(&zone.table(), kPolicy, Mode::kSync, Guard::kSender, processes[2]);
        second.begin_round();
        assert_true(second.next(kNow, kMany, &batch));
        steady += 100 * kSecond;
        third.begin_round();
        assert_true(third.next(kNow, kMany, &batch));
        assert_int_equal(batch.sequence, 2);
    }
    first.begin_round();
    assert_true(first.next(kNow, kMany, &batch));
    assert_int_equal(batch.sequence, 2);
    confirm(&first, batch, ledger.apply(batch, kNow), kNow);
    // The process does not notice that another one led meanwhile.
    use(zone, "carol", 4);
    steady += 100 * kSecond;
    second.begin_round();
    assert_true(second.next(kNow, kMany, &batch));
    assert_int_equal(batch.sequence, 3);
    dead_process = processes[1].self;
    steady += 2 * kSecond;
    use(zone, "dave", 5);
    first.begin_round();
    assert_true(first.next(kNow, kMany, &batch));
    assert_int_equal(batch.sequence, 3);
    assert_content(batch, "carol=4 ");
    assert_int_equal(ledger.charged("alice"), 3);
    assert_int_equal(ledger.charged("bob"), 2);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_without_unsent_counts_nothing_is_sent_and_no_slot_touched),
        cmocka_unit_test(test_a_batch_has_clients_and_amounts),
        cmocka_unit_test(test_a_round_has_each_client_once_in_batches_of_at_most_so_many),
        cmocka_unit_test(test_an_unfinished_round_continues),
        cmocka_unit_test(test_sequence_numbers_continue_after_another_ledger),
        cmocka_unit_test(test_one_batch_at_a_time_is_in_flight_where_numbers_must_arrive_in_order),
        cmocka_unit_test(test_a_failed_batch_is_retried_first_and_unchanged),
        cmocka_unit_test(test_where_each_client_has_a_guard_many_batches_are_in_flight),
        cmocka_unit_test(test_a_batch_that_another_ledger_left_in_flight_is_retried_unchanged),
        cmocka_unit_test(test_retries_come_in_the_order_of_their_numbers),
        cmocka_unit_test(test_a_retry_leaves_out_confirmed_entries),
        cmocka_unit_test(test_a_client_that_is_evicted_while_in_flight_does_no_harm),
        cmocka_unit_test(test_a_late_reply_to_an_older_batch_changes_nothing),
        cmocka_unit_test(test_a_reply_reaches_a_client_that_has_moved_to_another_slot),
        cmocka_unit_test(test_a_failed_batch_of_evicted_clients_is_dropped),
        cmocka_unit_test(test_a_retry_leaves_out_clients_that_are_in_another_batch),
        cmocka_unit_test(test_a_client_without_a_name_is_not_sent),
        cmocka_unit_test(test_overshoot_is_summed_in_the_table),
        cmocka_unit_test(test_one_process_sends_and_another_after_its_death),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
