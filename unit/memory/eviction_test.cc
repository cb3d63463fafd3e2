// How many clients a zone holds, and which client is evicted from a full zone.
#include <cstdio>

#include "shared_zone.h"

namespace rate_limit {
namespace {

// How many clients were inserted before the first eviction.
std::uint64_t clients_before_an_eviction(const Zone& zone) {
    for (std::uint64_t i = 0; i < 2 * zone->slots(); i++) {
        assert_int_equal(zone.request(client_number(i)), Verdict::kAdmitted);
        if (zone->evictions() != 0) {
            return i;
        }
    }
    fail_msg("%s", "a full zone forgets somebody");
    return 0;
}

void print_bytes_per_client(const char* name, const Zone& zone, std::uint64_t before) {
    std::printf(
        "# %-22s %6.1f bytes a client when the first is evicted (%lu clients), %.1f when full (%lu)\n", name,
        1048576.0 / static_cast<double>(before), static_cast<unsigned long>(before),
        1048576.0 / static_cast<double>(zone->clients()), static_cast<unsigned long>(zone->clients()));
}

void fill_up(const Zone& zone) {
    for (std::uint64_t i = 0; i < 4 * zone->slots(); i++) {
        zone.request(client_number(i));
    }
    assert_int_equal(zone->clients(), zone->slots());
}

void test_a_megabyte_holds_25000_clients_of_one_rate(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        if (algorithm == Algorithm::kSlidingBuckets || algorithm == Algorithm::kSlidingLog) {
            continue;
        }
        const Zone zone(policy_of(algorithm, "100r/m"));
        const std::uint64_t before = clients_before_an_eviction(zone);
        assert_true(before >= 25000);
        assert_true(before > zone->slots() * 8 / 10);
        fill_up(zone);
        print_bytes_per_client(algorithm_name(algorithm), zone, before);
    }
}

void test_a_zone_forgets_nobody_before_most_of_it_is_used(void**) {
    const struct {
        const char* name;
        Policy policy;
    } cases[] = {
        {"sliding_log 5r/m", policy_of(Algorithm::kSlidingLog, "5r/m")},
        {"sliding_log 100r/m", policy_of(Algorithm::kSlidingLog, "100r/m")},
        {"sliding_buckets 10", policy_of(Algorithm::kSlidingBuckets, "100r/m")},
    };
    for (const auto& one : cases) {
        const Zone zone(one.policy);
        const std::uint64_t before = clients_before_an_eviction(zone);
        assert_true(before > zone->slots() * 8 / 10);
        fill_up(zone);
        print_bytes_per_client(one.name, zone, before);
    }
}

void test_the_client_that_used_least_gives_way(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Zone zone = small_zone(policy_of(algorithm, "100r/m"), 1);
        for (std::uint32_t i = 0; i < 16; i++) {
            zone.request(client_number(i * 7 % 16), kNow, 1 + i * 7 % 16);
        }
        assert_int_equal(zone->evictions(), 0);
        for (std::uint32_t i = 0; i < 16; i++) {
            zone.request(client_number(100 + i), kNow, 50 + i);
            assert_int_equal(zone->evictions(), i + 1);
            assert_int_equal(zone->clients(), 16);
            for (std::uint32_t j = 0; j < 16; j++) {
                assert_int_equal(zone.used(client_number(j)), j <= i ? 0 : 1 + j);
            }
            assert_int_equal(zone.used(client_number(100 + i)), 50 + i);
        }
    }
}

void test_a_client_back_at_its_full_quota_gives_way_first_and_is_not_counted(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (std::uint32_t rested = 0; rested < 16; rested++) {
            const Zone zone = small_zone(policy_of(algorithm, "100r/m"), 1);
            const Micros later = kNow + 3 * kMinute;
            for (std::uint32_t i = 0; i < 16; i++) {
                zone.request(client_number(i), i == rested ? kNow : later, i == rested ? 100 : 1);
            }
            zone.request(client_number(100), later, 1);
            assert_int_equal(zone->evictions(), 0);
            for (std::uint32_t i = 0; i < 16; i++) {
                assert_int_equal(zone.used(client_number(i), later), i == rested ? 0 : 1);
            }
            zone.request(client_number(101), later, 1);
            assert_int_equal(zone->evictions(), 1);
        }
    }
}

void test_of_two_that_used_the_same_the_one_it_matters_to_for_less_long_gives_way(void**) {
    const Zone zone = small_zone(policy_of(Algorithm::kSlidingLog, "2r/m"), 1);
    for (std::uint32_t i = 0; i < 16; i++) {
        zone.request(client_number(i), kNow + i * 5 % 16 * kSecond, 2);
    }
    zone.request(client_number(100), kNow + 16 * kSecond, 2);
    assert_int_equal(zone.used(client_number(0), kNow + 16 * kSecond), 0);
    for (std::uint32_t i = 1; i < 16; i++) {
        assert_int_equal(zone.used(client_number(i), kNow + 16 * kSecond), 2);
    }
}

void test_where_rates_differ_a_client_weighs_by_its_own(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy limited = policy_of(algorithm, "5r/h");
        const Policy generous = policy_of(algorithm, "100r/s");
        const Memory memory(size_of_sets(layout_of(limited, 2, 100), 4));
        Table* table = Table::create(memory.at(), memory.size(), layout_of(limited, 2, 100), {1, 2});
        TableLimit limit = {table, &limited, client_number(1), 5, {}};
        assert_int_equal(check(&limit, 1, kNow, this_process()), Verdict::kAdmitted);
        // A request under a rate with a larger quota does not hide what was used under the other rate.
        TableLimit same = {table, &generous, client_number(1), 1, {}};
        check(&same, 1, kNow + 2 * kSecond, this_process());
        limit.cost = 1;
        for (std::uint32_t i = 0; i < 2000; i++) {
            TableLimit other = {table, &generous, client_number(100 + i), 1, {}};
            assert_int_equal(check(&other, 1, kNow + 2 * kSecond + i, this_process()), Verdict::kAdmitted);
            assert_int_equal(check(&limit, 1, kNow + 2 * kSecond + i, this_process()), Verdict::kRejected);
        }
    }
}

void test_a_full_zone_has_room_for_a_new_client_however_long_its_period(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const char* rate : {"1r/s", "1r/w", "1r/30d", "1r/366d"}) {
            const Zone zone = small_zone(policy_of(algorithm, rate), 1);
            for (std::uint32_t i = 0; i < 100; i++) {
                assert_int_equal(zone.request(client_number(i)), Verdict::kAdmitted);
                assert_int_equal(zone.request(client_number(i)), Verdict::kRejected);
            }
            assert_int_equal(zone->evictions(), 100 - 16);
        }
    }
}

// While many other clients are inserted, a client at its limit is not evicted.
void flood(Algorithm algorithm, std::uint64_t others, Micros duration) {
    const Policy policy = policy_of(algorithm, "10r/m");
    const Zone zone(policy);
    const Process process = this_process();
    Client alone(policy);
    TableLimit limited = zone.limit(zone->hash("limited"));
    unsigned rejected = 0;
    for (std::uint64_t i = 0; i < others; i++) {
        const Micros now = kNow + static_cast<Micros>(i) * duration / static_cast<Micros>(others);
        TableLimit other = zone.limit(client_number(i));
        assert_int_equal(check(&other, 1, now, process), Verdict::kAdmitted);
        for (unsigned j = 0; j < (i == 0 ? 11 : i % 500 == 0 ? 1 : 0); j++) {
            check(&limited, 1, now, process);
            const Decision expected = alone.request(now);
            assert_int_equal(limited.decision.allowed, expected.allowed);
            assert_int_equal(limited.decision.remaining, expected.remaining);
            assert_int_equal(limited.decision.retry_after, expected.retry_after);
            rejected += expected.allowed ? 0 : 1;
        }
    }
    assert_true(rejected > others / 500 - 10);
    assert_true(zone->evictions() > zone->slots() / 2);
    assert_int_equal(zone->clients(), zone->slots());
}

void test_a_flood_of_a_million_clients_leaves_a_limited_one_limited(void**) {
    flood(Algorithm::kSlidingWindow, 1'000'000, 30 * kSecond);
    flood(Algorithm::kTokenBucket, 300'000, 10 * kSecond);
}

void test_a_flood_leaves_a_limited_client_limited_under_every_algorithm(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        flood(algorithm, 100'000, 4 * kSecond);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_megabyte_holds_25000_clients_of_one_rate),
        cmocka_unit_test(test_a_zone_forgets_nobody_before_most_of_it_is_used),
        cmocka_unit_test(test_the_client_that_used_least_gives_way),
        cmocka_unit_test(test_a_client_back_at_its_full_quota_gives_way_first_and_is_not_counted),
        cmocka_unit_test(test_of_two_that_used_the_same_the_one_it_matters_to_for_less_long_gives_way),
        cmocka_unit_test(test_where_rates_differ_a_client_weighs_by_its_own),
        cmocka_unit_test(test_a_full_zone_has_room_for_a_new_client_however_long_its_period),
        cmocka_unit_test(test_a_flood_of_a_million_clients_leaves_a_limited_one_limited),
        cmocka_unit_test(test_a_flood_leaves_a_limited_client_limited_under_every_algorithm),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
