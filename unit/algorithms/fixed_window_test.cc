// fixed_window: a counter per window, aligned to the clock or to a client's first request.
#include "client.h"
#include "expect.h"

namespace rate_limit {
namespace {

Policy fixed(const char* rate, bool align_first) {
    Policy policy = policy_of(Algorithm::kFixedWindow, rate);
    policy.align_first = align_first;
    return policy;
}

void test_a_window_on_the_clock_admits_the_limit(void**) {
    Client client(fixed("10r/m", false));
    const Micros now = kMidnight + 20 * kSecond;
    const Decision decision = client.request(now);
    assert_int_equal(decision.limit, 10);
    assert_admitted(decision, 9, 40 * kSecond);
    assert_int_equal(client.admitted(now, 20), 9);
    assert_rejected(client.request(now), 0, 40 * kSecond, 40 * kSecond);
    assert_rejected(client.request(kMidnight + kMinute - 1), 0, 1, 1);
    assert_admitted(client.request(kMidnight + kMinute), 9, kMinute);
}

void test_a_window_on_the_clock_ends_with_the_clocks_period(void**) {
    for (const char* rate : {"1r/s", "1r/m", "1r/h", "1r/d", "1r/12h", "1r/30s"}) {
        Policy policy = fixed(rate, false);
        const Micros period = policy.rates.rates[0].period;
        Client client(policy);
        assert_true(client.request(kMidnight + period - 1).allowed);
        assert_true(client.request(kMidnight + period).allowed);
        assert_false(client.request(kMidnight + 2 * period - 1).allowed);
        assert_true(client.request(kMidnight + 2 * period).allowed);
    }
}

void test_a_window_of_the_first_request_starts_with_it(void**) {
    Client client(fixed("10r/m", true));
    const Micros now = kMidnight + 20 * kSecond;
    assert_admitted(client.request(now), 9, kMinute);
    assert_int_equal(client.admitted(now + 30 * kSecond, 20), 9);
    assert_rejected(client.request(now + 40 * kSecond), 0, 20 * kSecond, 20 * kSecond);
    assert_rejected(client.request(now + kMinute - 1), 0, 1, 1);
    assert_admitted(client.request(now + kMinute), 9, kMinute);
}

void test_the_next_window_of_the_first_request_starts_when_the_client_returns(void**) {
    Client client(fixed("2r/m", true));
    client.request(kMidnight);
    assert_admitted(client.look(kMidnight + 90 * kSecond), 2, 0);
    assert_admitted(client.request(kMidnight + 90 * kSecond), 1, kMinute);
    assert_admitted(client.request(kMidnight + 149 * kSecond), 0, kSecond);
    assert_rejected(client.request(kMidnight + 149 * kSecond), 0, kSecond, kSecond);
}

// A look or a rejection before the first admitted request starts no window.
void test_only_an_admitted_request_starts_a_window(void**) {
    Client client(fixed("2r/m", true));
    assert_admitted(client.request(kMidnight, 0), 2, 0);
    assert_rejected(client.request(kMidnight, 3), 2, 0, kNever);
    assert_admitted(client.request(kMidnight + 50 * kSecond), 1, kMinute);
}

void test_a_cost_fits_whole_or_not_at_all(void**) {
    for (const bool align_first : {false, true}) {
        Client client(fixed("10r/m", align_first));
        assert_admitted(client.request(kMidnight, 7), 3, kMinute);
        assert_rejected(client.request(kMidnight, 4), 3, kMinute, kMinute);
        assert_rejected(client.request(kMidnight, 11), 3, kMinute, kNever);
        assert_admitted(client.request(kMidnight, 3), 0, kMinute);
    }
}

// The known weakness of fixed windows: a whole quota at the end of a window and one at the start of the next.
void test_twenty_requests_around_the_edge_of_a_window_pass(void**) {
    Client client(fixed("10r/m", false));
    assert_int_equal(client.admitted(kMidnight + kMinute - 1, 10), 10);
    assert_int_equal(client.admitted(kMidnight + kMinute, 11), 10);
}

void test_excess_is_what_is_beyond_the_limit(void**) {
    Client client(fixed("10r/m", false));
    assert_int_equal(client.request(kMidnight, 8).excess_milli, 0);
    assert_int_equal(client.request(kMidnight, 5).excess_milli, 3000);
}

void test_a_clock_before_the_window_by_the_slack_waits_for_it(void**) {
    Client client(fixed("1r/m", false));
    client.request(kMidnight);
    assert_rejected(client.request(kMidnight - kClockSlack), 0, kMinute + kClockSlack, kMinute + kClockSlack);
    Client first(fixed("1r/m", true));
    first.request(kMidnight + 7);
    assert_rejected(first.request(kMidnight), 0, kMinute + 7, kMinute + 7);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_window_on_the_clock_admits_the_limit),
        cmocka_unit_test(test_a_window_on_the_clock_ends_with_the_clocks_period),
        cmocka_unit_test(test_a_window_of_the_first_request_starts_with_it),
        cmocka_unit_test(test_the_next_window_of_the_first_request_starts_when_the_client_returns),
        cmocka_unit_test(test_only_an_admitted_request_starts_a_window),
        cmocka_unit_test(test_a_cost_fits_whole_or_not_at_all),
        cmocka_unit_test(test_twenty_requests_around_the_edge_of_a_window_pass),
        cmocka_unit_test(test_excess_is_what_is_beyond_the_limit),
        cmocka_unit_test(test_a_clock_before_the_window_by_the_slack_waits_for_it),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
