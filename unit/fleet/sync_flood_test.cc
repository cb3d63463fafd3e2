// New clients with unsent counts do not evict a client that is at its limit.
#include <cstdio>

#include "ledgers.h"

namespace rate_limit {
namespace {

constexpr Algorithm kSynced[] = {
    Algorithm::kTokenBucket, Algorithm::kLeakyBucket,   Algorithm::kGcra,
    Algorithm::kFixedWindow, Algorithm::kSlidingWindow, Algorithm::kSlidingBuckets,
};

// 3000 new clients per second arrive for three seconds. Client "limited" has used its ten requests of a
// minute, and sends a request for every 50 new clients. Returns how many of its requests are admitted.
template <class Ask, class Sync>
unsigned flood(Micros every, const Ask& ask, const Sync& sync) {
    constexpr Micros kBetween = kSecond / 3000;
    unsigned admitted = 0;
    for (unsigned i = 0; i < 15; i++) {
        admitted += ask("limited", kNow) ? 1 : 0;
    }
    Micros synced = kNow;
    for (unsigned i = 0; i < 9000; i++) {
        const Micros now = kNow + i * kBetween;
        if (now - synced >= every) {
            synced = now;
            sync(now);
        }
        ask(name_of(i), now);
        if (i % 50 == 0) {
            admitted += ask("limited", now) ? 1 : 0;
        }
    }
    return admitted;
}

void test_a_flood_leaves_a_limited_client_limited_as_it_does_without_sync(void**) {
    for (const Algorithm algorithm : kSynced) {
        for (const Micros every : {10'000, 100'000, 1'000'000}) {
            Scene scene(with_debt(policy_of(algorithm, "10r/m")), Mode::kSync, Guard::kSender, 20);
            const unsigned admitted = flood(
                every,
                [&](const std::string& name, Micros now) {
                    return use(scene.zone, name, 1, now) == Verdict::kAdmitted;
                },
                [&](Micros now) { sync(&scene.sync_ledger, &scene.ledger, now, 200); });
            std::printf("# %s, sync=%ldms: %u admitted, %lu forgotten, %lu not told\n",
                        algorithm_name(algorithm), static_cast<long>(every / 1000), admitted,
                        static_cast<unsigned long>(scene.zone->evictions()),
                        static_cast<unsigned long>(scene.zone->lost()));
            assert_int_equal(admitted, 10);
            assert_int_equal(scene.ledger.charged("limited"), 10);
            assert_true(scene.zone->evictions() > 1000);
        }
    }
}

// No unsent count is lost in a zone that is large enough.
void test_nothing_is_lost_while_a_round_of_new_clients_fits(void**) {
    Scene scene(with_debt(policy_of(Algorithm::kSlidingWindow, "10r/m")), Mode::kSync, Guard::kSender, 100);
    const unsigned admitted = flood(
        100'000,
        [&](const std::string& name, Micros now) {
            return use(scene.zone, name, 1, now) == Verdict::kAdmitted;
        },
        [&](Micros now) { sync(&scene.sync_ledger, &scene.ledger, now, 200); });
    assert_int_equal(admitted, 10);
    assert_true(scene.zone->evictions() > 1000);
    assert_int_equal(scene.zone->lost(), 0);
}

// Where rates differ, the weight of a client includes what other instances have admitted.
void test_a_client_that_others_have_admitted_stays_where_rates_differ(void**) {
    for (const Algorithm algorithm : kSynced) {
        const Policy policy = with_debt(policy_of(algorithm, "10r/m"));
        const StateLayout layout = layout_of(policy, 2, 0);
        Scene scene(policy, layout, Mode::kSync, Guard::kSender, 20);
        const Zone elsewhere(policy, layout, size_with_unsent(layout, 20), true, HashKey{3, 4});
        SyncLedger other(&elsewhere.table(), elsewhere.policy(), Mode::kSync, Guard::kSender, process());
        use(elsewhere, "limited", 9);
        sync(&other, &scene.ledger);
        use(scene.zone, "limited");
        sync(&scene.sync_ledger, &scene.ledger);
        for (unsigned i = 0; i < 3000; i++) {
            use(scene.zone, name_of(i), 2, kNow + i);
            assert_int_equal(use(scene.zone, "limited", 1, kNow + i), Verdict::kRejected);
            if (i % 300 == 0) {
                sync(&scene.sync_ledger, &scene.ledger, kNow + i, 200);
            }
        }
        assert_true(scene.zone->evictions() > 1000);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_flood_leaves_a_limited_client_limited_as_it_does_without_sync),
        cmocka_unit_test(test_nothing_is_lost_while_a_round_of_new_clients_fits),
        cmocka_unit_test(test_a_client_that_others_have_admitted_stays_where_rates_differ),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
