// gcra: the next theoretical arrival time, with redis-cell's burst.
#include "client.h"
#include "expect.h"

namespace rate_limit {
namespace {

Policy gcra(const char* rate, std::uint32_t burst) {
    Policy policy = policy_of(Algorithm::kGcra, rate);
    policy.burst = burst;
    return policy;
}

// CL.THROTTLE user123 15 30 60 1 answers 0, 16, 15, -1, 2.
void test_the_example_of_redis_cell_gives_its_numbers(void**) {
    Client client(gcra("30r/m", 15));
    const Decision decision = client.request(kMidnight);
    assert_int_equal(decision.limit, 16);
    assert_admitted(decision, 15, 2 * kSecond);
}

void test_burst_and_one_pass_at_once(void**) {
    Client client(gcra("30r/m", 15));
    assert_int_equal(client.admitted(kMidnight, 40), 16);
    assert_rejected(client.request(kMidnight), 0, 32 * kSecond, 2 * kSecond);
    assert_int_equal(client.admitted(kMidnight + 2 * kSecond - 1, 40), 0);
    assert_int_equal(client.admitted(kMidnight + 2 * kSecond, 40), 1);
    assert_int_equal(client.admitted(kMidnight + 6 * kSecond, 40), 2);
    assert_int_equal(client.admitted(kMidnight + kHour, 40), 16);
}

void test_redis_cell_counts_a_quantity_as_so_many_requests(void**) {
    Client client(gcra("30r/m", 15));
    assert_admitted(client.request(kMidnight, 10), 6, 20 * kSecond);
    assert_rejected(client.request(kMidnight, 7), 6, 20 * kSecond, 2 * kSecond);
    assert_rejected(client.request(kMidnight, 16), 6, 20 * kSecond, 20 * kSecond);
    assert_rejected(client.request(kMidnight, 17), 6, 20 * kSecond, kNever);
    assert_admitted(client.request(kMidnight, 6), 0, 32 * kSecond);
}

void test_without_burst_requests_are_an_emission_interval_apart(void**) {
    Client client(gcra("4r/s", 0));
    const Decision decision = client.request(kMidnight);
    assert_int_equal(decision.limit, 1);
    assert_admitted(decision, 0, 250'000);
    assert_rejected(client.request(kMidnight + 100'000), 0, 150'000, 150'000);
    assert_false(client.request(kMidnight + 249'999).allowed);
    assert_admitted(client.request(kMidnight + 250'000), 0, 250'000);
    assert_true(client.request(kMidnight + 500'001).allowed);
    // The microsecond that the last came late is not made up for.
    assert_false(client.request(kMidnight + 750'000).allowed);
    assert_true(client.request(kMidnight + 750'001).allowed);
}

void test_time_not_used_is_saved_up_to_the_burst_only(void**) {
    Client client(gcra("1r/s", 2));
    assert_int_equal(client.admitted(kMidnight, 5), 3);
    assert_int_equal(client.admitted(kMidnight + 2 * kSecond, 5), 2);
    assert_int_equal(client.admitted(kMidnight + 102 * kSecond, 5), 3);
}

// 7r/s have an emission interval of 142857 1/7 us: seven of them are one second exactly.
void test_the_emission_interval_is_not_rounded(void**) {
    Client client(gcra("7r/s", 6));
    for (Micros i = 1; i <= 7; ++i) {
        assert_admitted(client.request(kMidnight), 7 - i, (i * kSecond + 6) / 7);
    }
    for (Micros i = 1; i <= 7000; ++i) {
        const Micros due = kMidnight + (i * kSecond + 6) / 7;
        assert_false(client.request(due - 1).allowed);
        assert_true(client.request(due).allowed);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_example_of_redis_cell_gives_its_numbers),
        cmocka_unit_test(test_burst_and_one_pass_at_once),
        cmocka_unit_test(test_redis_cell_counts_a_quantity_as_so_many_requests),
        cmocka_unit_test(test_without_burst_requests_are_an_emission_interval_apart),
        cmocka_unit_test(test_time_not_used_is_saved_up_to_the_burst_only),
        cmocka_unit_test(test_the_emission_interval_is_not_rounded),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
