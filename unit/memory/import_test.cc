// Import into a table of another layout, while other processes use the old table.
#include "processes.h"
#include "shared_zone.h"

namespace rate_limit {
namespace {

constexpr unsigned kClients = 200;

// Client i has used 1 + i % 5 requests.
void fill(const Zone& zone) {
    for (unsigned i = 0; i < kClients; i++) {
        zone.request(client_number(i), kNow, 1 + i % 5);
    }
}

void import(const Zone& from, const Zone& to, Micros now = kNow) {
    to->import(from.table(), from.policy().rates, to.policy(), now, this_process());
}

void assert_carried(const Zone& from, const Zone& to) {
    import(from, to);
    assert_int_equal(to->clients(), from->clients());
    assert_int_equal(to->evictions(), 0);
    for (unsigned i = 0; i < kClients; i++) {
        assert_int_equal(to.used(client_number(i)), 1 + i % 5);
        assert_int_equal(from.used(client_number(i)), 1 + i % 5);
    }
}

void test_counts_are_carried_to_more_rates_and_back(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Zone one(policy_of(algorithm, "10r/m"));
        const Zone two(policy_of(algorithm, "10r/m,20r/h"));
        const Zone back(policy_of(algorithm, "10r/m"));
        fill(one);
        assert_carried(one, two);
        assert_carried(two, back);
        assert_int_equal(back.admitted(client_number(4), 20), 5);
    }
}

void test_counts_are_carried_from_rates_that_are_not_known(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Zone from(policy_of(algorithm, "10r/m"));
        const Zone to(policy_of(algorithm, "10r/m"), 1 << 16);
        fill(from);
        to->import(from.table(), RateList{}, to.policy(), kNow, this_process());
        for (unsigned i = 0; i < kClients; i++) {
            assert_int_equal(to.used(client_number(i)), 1 + i % 5);
        }
    }
}

void test_counts_are_carried_to_another_size(void**) {
    const Policy policy = policy_of(Algorithm::kSlidingWindow, "10r/m");
    const Zone small = small_zone(policy, 20);
    const Zone large(policy);
    const Zone smaller = small_zone(policy, 18);
    fill(small);
    assert_int_equal(small->clients(), kClients);
    assert_carried(small, large);
    assert_carried(large, smaller);
}

void test_a_log_is_carried_to_a_longer_one_and_back(void**) {
    const Zone five(policy_of(Algorithm::kSlidingLog, "5r/m"));
    const Zone fifty(policy_of(Algorithm::kSlidingLog, "50r/m"));
    const Zone back(policy_of(Algorithm::kSlidingLog, "5r/m"));
    fill(five);
    assert_carried(five, fifty);
    // The shorter log keeps the last five of twelve requests, one each second.
    for (unsigned i = 0; i < 11; i++) {
        fifty.request(client_number(0), kNow + (1 + i) * kSecond);
    }
    import(fifty, back, kNow + 12 * kSecond);
    assert_int_equal(back.used(client_number(0), kNow + 12 * kSecond), 5);
    assert_int_equal(back.used(client_number(0), kNow + 67 * kSecond - 1), 5);
    assert_int_equal(back.used(client_number(0), kNow + 67 * kSecond), 4);
    assert_int_equal(back.used(client_number(0), kNow + 71 * kSecond), 0);
    for (unsigned i = 1; i < kClients; i++) {
        assert_int_equal(back.used(client_number(i)), 1 + i % 5);
    }
}

void test_the_least_interval_is_carried(void**) {
    Policy policy = policy_of(Algorithm::kGcra, "10r/m");
    policy.min_interval = 20 * kSecond;
    const Zone one(policy);
    policy.rates = rates_of("10r/m,20r/h");
    const Zone two(policy);
    one.request(1);
    import(one, two);
    assert_int_equal(two.request(1, kNow + 20 * kSecond - 1), Verdict::kRejected);
    assert_int_equal(two.request(1, kNow + 20 * kSecond), Verdict::kAdmitted);
}

void test_the_hash_key_is_taken_over(void**) {
    const Policy policy = policy_of(Algorithm::kSlidingWindow, "10r/m");
    const Zone from(policy);
    const Memory memory(kMegabyteZone);
    Table* to = Table::create(memory.at(), memory.size(), layout_of(policy), {1, 2});
    const std::uint64_t hash = from->hash("192.0.2.1");
    assert_int_not_equal(to->hash("192.0.2.1"), hash);
    from.request(hash, kNow, 7);
    to->import(from.table(), policy.rates, policy, kNow, this_process());
    assert_int_equal(to->hash("192.0.2.1"), hash);
    TableLimit limit = {to, &policy, to->hash("192.0.2.1"), 0, {}};
    check(&limit, 1, kNow, this_process());
    assert_int_equal(limit.decision.remaining, 3);
}

void test_a_table_too_small_for_all_keeps_those_who_used_most(void**) {
    const Policy policy = policy_of(Algorithm::kSlidingWindow, "1000r/m");
    const Zone from(policy);
    for (unsigned i = 0; i < 100; i++) {
        from.request(client_number(i), kNow, 1 + i);
    }
    const Zone to = small_zone(policy, 1);
    import(from, to);
    assert_int_equal(to->clients(), 16);
    assert_int_equal(to->evictions(), 84);
    for (unsigned i = 85; i < 100; i++) {
        assert_int_equal(to.used(client_number(i)), 1 + i);
    }
}

void test_a_client_that_is_only_being_entered_is_not_carried(void**) {
    const Policy policy = policy_of(Algorithm::kSlidingWindow, "10r/m");
    const Zone from = small_zone(policy, 1);
    const Zone to(policy);
    for (unsigned i = 0; i < 16; i++) {
        from.request(client_number(i), kNow, 5);
    }
    // The client was inserted for an evicted one, whose state may still be there.
    const Slot slot = from->acquire(77, policy, kNow + 5 * kMinute, made_up_process(1));
    assert_true(slot.fresh);
    slot.state[0] = ~std::uint64_t{0};
    import(from, to);
    assert_int_equal(to->clients(), 15);
    assert_null(to->find(77, this_process()).state);
}

void test_a_client_that_somebody_holds_is_carried_at_once(void**) {
    const Policy policy = policy_of(Algorithm::kSlidingWindow, "10r/m");
    const Zone from(policy);
    const Zone to(policy);
    from.request(1, kNow, 5);
    const Slot slot = from->acquire(1, policy, kNow, made_up_process(1));
    import(from, to);
    assert_int_equal(to.used(1), 5);
    assert_int_equal(*slot.lock, kMadeUp + 1);
}

void test_others_that_use_the_old_table_meanwhile_are_not_disturbed_and_disturb_nothing(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Memory memory(sizeof(Meeting) + sizeof(std::atomic<bool>));
        auto* meeting = memory.as<Meeting>();
        auto* enough = reinterpret_cast<std::atomic<bool>*>(meeting + 1);
        const Zone from(policy_of(algorithm, "10r/m"), 1 << 16);
        fill(from);
        Child user([&] {
            const Process process = this_process();
            meeting->join(2);
            for (unsigned i = 0; !*enough; i++) {
                TableLimit limit = from.limit(client_number(1000 + i % 100), 1);
                if (check(&limit, 1, kNow + i / 1000, process) == Verdict::kBusy) {
                    return 1;
                }
            }
            for (unsigned i = 0; i < 100; i++) {
                from.admitted(client_number(1000 + i), 10);
            }
            return 0;
        });
        meeting->join(2);
        for (unsigned round = 0; round < 20; round++) {
            const Zone to(policy_of(algorithm, "10r/m,20r/h"));
            import(from, to);
            for (unsigned i = 0; i < kClients; i++) {
                assert_int_equal(to.used(client_number(i)), 1 + i % 5);
            }
            for (unsigned i = 0; i < 100; i++) {
                assert_in_range(to.used(client_number(1000 + i)), 0, 10);
            }
        }
        *enough = true;
        assert_int_equal(user.wait(), 0);
        for (unsigned i = 0; i < 100; i++) {
            assert_int_equal(from.used(client_number(1000 + i)), 10);
        }
        assert_int_equal(from->evictions(), 0);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_are_carried_to_more_rates_and_back),
        cmocka_unit_test(test_counts_are_carried_from_rates_that_are_not_known),
        cmocka_unit_test(test_counts_are_carried_to_another_size),
        cmocka_unit_test(test_a_log_is_carried_to_a_longer_one_and_back),
        cmocka_unit_test(test_the_least_interval_is_carried),
        cmocka_unit_test(test_the_hash_key_is_taken_over),
        cmocka_unit_test(test_a_table_too_small_for_all_keeps_those_who_used_most),
        cmocka_unit_test(test_a_client_that_is_only_being_entered_is_not_carried),
        cmocka_unit_test(test_a_client_that_somebody_holds_is_carried_at_once),
        cmocka_unit_test(test_others_that_use_the_old_table_meanwhile_are_not_disturbed_and_disturb_nothing),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
