// Which part of a count is still worth sending, and which state a table has after the reply.
#include <memory>

#include "ledgers.h"

namespace rate_limit {
namespace {

void test_a_table_gets_the_state_of_redis_and_keeps_its_unsent_count(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        if (algorithm == Algorithm::kSlidingLog) {
            continue;
        }
        const Policy policy = with_debt(policy_of(algorithm, "100r/m"));
        Scene scene(policy);
        use(scene.zone, "alice", 5);
        assert_true(scene.begin());
        // Meanwhile other instances have used 30, and 7 more are admitted here.
        SyncBatch others;
        others.sender = 1;
        others.sequence = 1;
        others.entries = scene.batch.entries;
        others.entries[0].amount = 30;
        scene.ledger.apply(others, kNow);
        use(scene.zone, "alice", 7);
        scene.confirm_all();
        assert_int_equal(scene.zone.used(scene.zone->hash("alice")), 42);
        assert_int_equal(unsent_of(scene.zone, "alice").unsent, 7);
        assert_int_equal(unsent_of(scene.zone, "alice").sending, 0);
        assert_true(unsent_of(scene.zone, "alice").marked);
        sync(&scene.sync_ledger, &scene.ledger);
        assert_int_equal(scene.zone.used(scene.zone->hash("alice")), 42);
        assert_int_equal(scene.ledger.charged("alice"), 42);
    }
}

void test_requests_beyond_a_limit_count(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        if (algorithm == Algorithm::kSlidingLog) {
            continue;
        }
        const Policy policy = with_debt(policy_of(algorithm, "10r/m"));
        Scene scene(policy);
        use(scene.zone, "alice", 10);
        assert_true(scene.begin());
        SyncBatch others = scene.batch;
        others.sender = 1;
        scene.ledger.apply(others, kNow);
        scene.confirm_all();
        // From now on the table decides like the ledger, in which twenty are used.
        for (Micros later = kNow; later < kNow + 3 * kMinute; later += kSecond / 2) {
            TableLimit limit = limit_of(scene.zone, "alice");
            precheck(&limit, 1, later, process());
            const Decision expected = scene.ledger.peek("alice", later, 1);
            assert_int_equal(limit.decision.allowed, expected.allowed);
            assert_int_equal(limit.decision.remaining, expected.remaining);
            assert_int_equal(limit.decision.retry_after, expected.retry_after);
        }
    }
}

void test_a_client_without_a_state_in_redis_starts_anew(void**) {
    Scene scene;
    use(scene.zone, "alice", 5);
    assert_true(scene.begin());
    use(scene.zone, "alice", 2);
    scene.sync_ledger.confirm(scene.batch, 0, nullptr, kNow, 0);
    assert_int_equal(scene.zone.used(scene.zone->hash("alice")), 2);
    assert_int_equal(unsent_of(scene.zone, "alice").unsent, 2);
}

void test_a_fallback_keeps_its_own_state(void**) {
    Scene scene(kPolicy, Mode::kFallback);
    use(scene.zone, "alice", 5);
    assert_true(scene.begin());
    assert_content(scene.batch, "alice=5 ");
    use(scene.zone, "alice", 2);
    scene.sync_ledger.confirm(scene.batch, 0, nullptr, 0, 0);
    assert_int_equal(scene.zone.used(scene.zone->hash("alice")), 7);
    assert_int_equal(unsent_of(scene.zone, "alice").unsent, 2);
    assert_int_equal(unsent_of(scene.zone, "alice").sending, 0);
    assert_true(scene.begin());
    assert_content(scene.batch, "alice=2 ");
    scene.sync_ledger.confirm(scene.batch, 0, nullptr, 0, 0);
    assert_int_equal(marks(scene.zone.table()), 0);
}

void test_a_state_keeps_its_weight_which_redis_does_not_store(void**) {
    const Policy policy = with_debt(policy_of(Algorithm::kSlidingWindow, "10r/m"));
    const StateLayout layout = layout_of(policy, 2, 0);
    Scene scene(policy, layout, Mode::kSync, Guard::kSender);
    use(scene.zone, "alice", 8);
    Slot slot = scene.zone->find(scene.zone->hash("alice"), process());
    const std::uint64_t weight = slot.state[weight_index(layout)];
    assert_int_not_equal(weight, 0);
    scene.zone->keep(slot, process());
    assert_true(scene.begin());
    std::vector<std::uint64_t> answer = scene.ledger.apply(scene.batch, kNow)[0];
    answer[weight_index(layout)] = 0;
    scene.sync_ledger.confirm(scene.batch, 0, answer.data(), kNow, 0);
    slot = scene.zone->find(scene.zone->hash("alice"), process());
    assert_int_equal(slot.state[weight_index(layout)], weight);
    scene.zone->keep(slot, process());
    assert_int_equal(scene.zone.used(scene.zone->hash("alice")), 8);
}

void test_where_rates_differ_each_entry_has_its_own(void**) {
    const Policy bare = with_debt(policy_of(Algorithm::kTokenBucket, "10r/m"));
    Policy none = bare;
    none.rates = {};
    const StateLayout layout = layout_of(bare, 2, 0);
    Scene scene(none, layout, Mode::kSync, Guard::kSender);
    const Policy generous = with_debt(policy_of(Algorithm::kTokenBucket, "1000r/m,5000r/h"));
    for (const Policy* policy : {&bare, &generous}) {
        TableLimit limit = limit_of(scene.zone, policy == &bare ? "alice" : "bob", 6);
        limit.policy = policy;
        assert_int_equal(check(&limit, 1, kNow, process()), Verdict::kAdmitted);
    }
    assert_true(scene.begin());
    assert_content(scene.batch, "alice=6 bob=6 ");
    for (const SyncEntry& entry : scene.batch.entries) {
        Policy room;
        const Policy& policy = scene.sync_ledger.policy_of(entry, &room);
        assert_int_equal(policy.rates.size, entry.name() == "bob" ? 2 : 1);
        assert_int_equal(policy.rates.rates[0].count, entry.name() == "bob" ? 1000 : 10);
    }
    for (const char* name : {"alice", "bob"}) {
        TableLimit limit = limit_of(scene.zone, name, 2);
        limit.policy = name[0] == 'b' ? &generous : &bare;
        check(&limit, 1, kNow, process());
    }
    scene.confirm_all();
    TableLimit limit = limit_of(scene.zone, "alice", 0);
    limit.policy = &bare;
    check(&limit, 1, kNow, process());
    assert_int_equal(limit.decision.remaining, 2);
}

void test_requests_that_have_left_their_window_are_not_sent(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const Mode mode : {Mode::kSync, Mode::kFallback}) {
            Policy policy = with_debt(policy_of(algorithm, "10r/m"));
            policy.min_interval = mode == Mode::kSync ? kMinute : 0;
            Scene scene(policy, mode);
            for (unsigned i = 0; i < 8; i++) {
                use(scene.zone, "alice", 4, kNow + i * kMinute);
            }
            const std::uint32_t unsent = unsent_of(scene.zone, "alice").unsent;
            assert_true(unsent >= 28);
            const Micros now = kNow + 7 * kMinute;
            const std::uint32_t counts = scene.zone.used(scene.zone->hash("alice"), now);
            assert_in_range(counts, 4, 10);
            assert_true(scene.begin(kMany, now));
            assert_int_equal(scene.batch.entries[0].amount, counts);
            assert_int_equal(unsent_of(scene.zone, "alice").unsent, 0);
            scene.confirm_all(now);
            // The window is over. A bucket that has drained here may not have drained elsewhere.
            use(scene.zone, "alice", 1, now + kMinute);
            const bool sent = is_bucket(algorithm) && mode == Mode::kSync;
            assert_int_equal(scene.begin(kMany, now + 4 * kMinute), sent);
            if (sent) {
                assert_content(scene.batch, "alice=1 ");
                scene.confirm_all(now + 4 * kMinute);
                assert_int_equal(scene.ledger.peek("alice", now + 4 * kMinute, 0).remaining,
                                 capacity_of(policy, policy.rates.rates[0]));
            }
            assert_int_equal(unsent_of(scene.zone, "alice").unsent, 0);
            assert_int_equal(marks(scene.zone.table()), 0);
        }
    }
}

void test_requests_that_have_left_their_window_while_in_flight_are_not_retried(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Scene scene(with_debt(policy_of(algorithm, "10r/m")), Mode::kFallback);
        use(scene.zone, "alice", 10);
        use(scene.zone, "bob", 10);
        assert_true(scene.begin());
        const Micros later = kNow + 3 * kMinute;
        use(scene.zone, "alice", 6, later);
        scene.sync_ledger.failed(scene.batch);
        assert_true(scene.begin(kMany, later));
        assert_int_equal(scene.batch.sequence, 1);
        assert_content(scene.batch, "alice=0 bob=0 ");
        scene.confirm_all(later);
        sync(&scene.sync_ledger, &scene.ledger, later);
        assert_int_equal(scene.ledger.charged("alice"), 6);
        assert_int_equal(scene.ledger.charged("bob"), 0);
        assert_int_equal(marks(scene.zone.table()), 0);
    }
}

void test_a_long_time_in_flight_does_not_put_a_client_in_debt(void**) {
    Scene scene(with_debt(policy_of(Algorithm::kTokenBucket, "10r/m")));
    use(scene.zone, "alice", 10);
    assert_true(scene.begin());
    for (unsigned i = 1; i <= 20; i++) {
        use(scene.zone, "alice", 10, kNow + i * kMinute);
    }
    const Micros now = kNow + 20 * kMinute + 30 * kSecond;
    scene.sync_ledger.failed(scene.batch);
    assert_true(scene.begin(kMany, now));
    scene.confirm_all(now);
    assert_int_equal(scene.zone.used(scene.zone->hash("alice"), now), 5);
    sync(&scene.sync_ledger, &scene.ledger, now);
    assert_in_range(scene.ledger.peek("alice", now, 0).remaining, 5, 10);
    assert_int_equal(scene.zone.used(scene.zone->hash("alice"), now), 5);
}

// Each of four instances gets half of the rate, so no instance alone fills the bucket.
void test_a_bucket_drains_once_for_all_instances(void**) {
    for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra}) {
        Policy policy = with_debt(policy_of(algorithm, "60r/m"));
        policy.capacity = algorithm == Algorithm::kTokenBucket ? 10 : 0;
        policy.burst = algorithm == Algorithm::kTokenBucket ? 0 : 9;
        const StateLayout layout = layout_of(policy);
        std::vector<std::unique_ptr<Zone>> zones;
        std::vector<std::unique_ptr<SyncLedger>> sync_ledgers;
        for (std::uint64_t i = 0; i < 4; i++) {
            zones.push_back(
                std::make_unique<Zone>(policy, layout, size_with_unsent(layout, 1), true, HashKey{i, i}));
            sync_ledgers.push_back(std::make_unique<SyncLedger>(&zones[i]->table(), zones[i]->policy(),
                                                                Mode::kSync, Guard::kSender, process()));
        }
        Ledger ledger(policy, layout, Guard::kSender);
        unsigned admitted = 0;
        for (unsigned second = 0; second < 600; second++) {
            const unsigned i = second % 4;
            const Micros now = kNow + second * kSecond;
            for (unsigned request = 0; request < 2; request++) {
                admitted += use(*zones[i], "alice", 1, now) == Verdict::kAdmitted ? 1 : 0;
            }
            if (second % 8 >= 4) {
                sync(sync_ledgers[i].get(), &ledger, now);
            }
        }
        assert_in_range(admitted, 600, 600 + 10 + 20);
    }
}

void test_of_several_rates_the_most_used_one_decides_what_is_sent(void**) {
    for (const char* rates : {"5r/s,1000r/h", "1000r/h,5r/s", "5r/s,1000r/h,2000r/d"}) {
        Policy policy = with_debt(policy_of(Algorithm::kFixedWindow, rates));
        Scene scene(policy, Mode::kFallback);
        for (unsigned i = 0; i < 20; i++) {
            use(scene.zone, "alice", 5, kNow + i * 2 * kSecond);
        }
        assert_true(scene.begin(kMany, kNow + kMinute));
        assert_content(scene.batch, "alice=100 ");
    }
}

void test_requests_beyond_a_limit_are_sent_where_they_count(void**) {
    for (const Algorithm algorithm :
         {Algorithm::kFixedWindow, Algorithm::kSlidingWindow, Algorithm::kSlidingBuckets}) {
        Policy policy = with_debt(policy_of(algorithm, "10r/m"));
        policy.count_all = true;
        policy.min_interval = 1;
        Scene scene(policy, Mode::kFallback);
        for (unsigned i = 0; i < 100; i++) {
            use(scene.zone, "alice", 3, kNow + i);
        }
        assert_true(scene.begin(kMany, kNow + 100));
        assert_content(scene.batch, "alice=300 ");
    }
    // A bucket in debt.
    for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra}) {
        Scene scene(with_debt(policy_of(algorithm, "10r/m")));
        use(scene.zone, "alice", 10);
        const Slot slot = scene.zone->find(scene.zone->hash("alice"), process());
        Check check;
        check.evaluate(scene.zone.policy(), scene.zone->layout(), slot.state, kNow, 8);
        check.impose(slot.state);
        scene.zone->unsent_of(slot).add(8);
        scene.zone->keep(slot, process());
        assert_true(scene.begin());
        assert_content(scene.batch, "alice=18 ");
        // A part of the bucket drains.
        scene.sync_ledger.failed(scene.batch);
        assert_true(scene.begin(kMany, kNow + 18 * kSecond));
        assert_content(scene.batch, "alice=15 ");
    }
}

// Another instance has given back most of a charge in Redis. With 60 a minute, 30 drain in 30 s, which no lag
// explains.
void test_a_bucket_follows_redis_after_charges_were_given_back(void**) {
    for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra}) {
        Policy policy = with_debt(policy_of(algorithm, "60r/m"));
        policy.burst = policy.capacity = 60;
        Scene scene(policy);
        assert_false(scene.begin());
        use(scene.zone, "alice", 40);
        assert_true(scene.begin());
        scene.confirm_all();
        assert_int_equal(scene.zone.used(scene.zone->hash("alice")), 40);
        Check check;
        std::uint64_t* words = scene.ledger.state("alice").data();
        check.evaluate(policy, scene.zone->layout(), words, kNow, 30);
        check.give_back(words);
        use(scene.zone, "alice", 1);
        assert_true(scene.begin());
        scene.confirm_all();
        assert_int_equal(scene.zone.used(scene.zone->hash("alice")), 11);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_table_gets_the_state_of_redis_and_keeps_its_unsent_count),
        cmocka_unit_test(test_requests_beyond_a_limit_count),
        cmocka_unit_test(test_a_client_without_a_state_in_redis_starts_anew),
        cmocka_unit_test(test_a_fallback_keeps_its_own_state),
        cmocka_unit_test(test_a_state_keeps_its_weight_which_redis_does_not_store),
        cmocka_unit_test(test_where_rates_differ_each_entry_has_its_own),
        cmocka_unit_test(test_requests_that_have_left_their_window_are_not_sent),
        cmocka_unit_test(test_requests_that_have_left_their_window_while_in_flight_are_not_retried),
        cmocka_unit_test(test_a_long_time_in_flight_does_not_put_a_client_in_debt),
        cmocka_unit_test(test_a_bucket_drains_once_for_all_instances),
        cmocka_unit_test(test_a_bucket_follows_redis_after_charges_were_given_back),
        cmocka_unit_test(test_of_several_rates_the_most_used_one_decides_what_is_sent),
        cmocka_unit_test(test_requests_beyond_a_limit_are_sent_where_they_count),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
