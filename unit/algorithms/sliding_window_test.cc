// sliding_window: the count of this window and the overlapping part of the window before.
#include "client.h"
#include "expect.h"

namespace rate_limit {
namespace {

Client used(const char* rate, std::uint32_t earlier, std::uint32_t now) {
    Client client(policy_of(Algorithm::kSlidingWindow, rate));
    if (earlier != 0) {
        assert_true(client.request(kMidnight, earlier).allowed);
    }
    // The end of the window is when the earlier ones weigh least, so that all of `now` fit.
    if (now != 0) {
        assert_true(client.request(kMidnight + 2 * kMinute - 1, now).allowed);
    }
    return client;
}

// 8 earlier × 50 % + 3 now = 7 of 10.
void test_eight_earlier_by_half_and_three_now_are_seven_of_ten(void**) {
    Client client = used("10r/m", 8, 0);
    const Micros half = kMidnight + kMinute + 30 * kSecond;
    assert_true(client.request(half, 2).allowed);
    const Decision third = client.request(half);
    assert_int_equal(third.limit, 10);
    assert_admitted(third, 3, 90 * kSecond);
    assert_admitted(client.request(half, 3), 0, 90 * kSecond);
    assert_false(client.request(half).allowed);
}

// The same third request at 10 % of the window: 8 × 90 % + 3 = 10.2.
void test_eight_earlier_by_nine_tenths_and_three_now_are_too_many(void**) {
    Client client = used("10r/m", 8, 0);
    const Micros tenth = kMidnight + kMinute + 6 * kSecond;
    assert_true(client.request(tenth, 2).allowed);
    const Decision third = client.request(tenth);
    assert_int_equal(third.excess_milli, 200);
    // 8 × 87.5 % + 3 = 10, 7.5 s after the window's start.
    assert_rejected(third, 0, 114 * kSecond, 1'500'000);
    assert_false(client.peek(tenth + 1'499'999).allowed);
    assert_true(client.peek(tenth + 1'500'000).allowed);
}

void test_a_client_is_told_the_moment_at_which_its_request_fits(void**) {
    Client client = used("10r/m", 10, 0);
    assert_rejected(client.request(kMidnight + 59 * kSecond), 0, 61 * kSecond, 7 * kSecond);
    assert_rejected(client.request(kMidnight + kMinute), 0, kMinute, 6 * kSecond);
    assert_rejected(client.request(kMidnight + kMinute, 10), 0, kMinute, kMinute);
    assert_rejected(client.request(kMidnight + kMinute, 11), 0, kMinute, kNever);
}

// 3 × left / P has to fall to 2: at a third of the window, and no microsecond before.
void test_the_moment_is_exact_where_it_is_no_whole_microsecond(void**) {
    Client client(policy_of(Algorithm::kSlidingWindow, "3r/s"));
    assert_true(client.request(kMidnight, 3).allowed);
    assert_rejected(client.request(kMidnight + kSecond), 0, kSecond, 333'334);
    assert_false(client.peek(kMidnight + kSecond + 333'333).allowed);
    assert_true(client.peek(kMidnight + kSecond + 333'334).allowed);
}

void test_a_full_window_may_have_to_become_the_earlier_one_first(void**) {
    Client client(policy_of(Algorithm::kSlidingWindow, "4r/m"));
    client.request(kMidnight + 30 * kSecond, 4);
    // 4 × 75 % + 1 = 4.
    assert_rejected(client.request(kMidnight + 30 * kSecond), 0, 90 * kSecond, 45 * kSecond);
    assert_true(client.peek(kMidnight + 75 * kSecond).allowed);
    assert_false(client.peek(kMidnight + 75 * kSecond - 1).allowed);
}

void test_after_two_windows_all_is_forgotten(void**) {
    Client client = used("10r/m", 10, 0);
    assert_int_equal(client.look(kMidnight + 2 * kMinute - 1).remaining, 9);
    assert_admitted(client.look(kMidnight + 2 * kMinute), 10, 0);
    client = used("10r/m", 10, 9);
    assert_admitted(client.look(kMidnight + 3 * kMinute), 10, 0);
    assert_int_equal(client.look(kMidnight + 2 * kMinute).remaining, 1);
}

// On the edge itself a new window begins.
void test_a_request_on_the_edge_belongs_to_the_window_that_begins(void**) {
    Client client(policy_of(Algorithm::kSlidingWindow, "10r/m"));
    assert_admitted(client.request(kMidnight, 4), 6, 2 * kMinute);
    assert_admitted(client.request(kMidnight + 2 * kMinute, 3), 7, 2 * kMinute);
    assert_admitted(client.request(kMidnight + 3 * kMinute), 6, 2 * kMinute);
    assert_admitted(client.look(kMidnight + 5 * kMinute - 1), 9, 1);
}

void test_remaining_is_rounded_down(void**) {
    Client client = used("10r/m", 1, 0);
    assert_int_equal(client.look(kMidnight + kMinute).remaining, 9);
    assert_int_equal(client.look(kMidnight + kMinute + 1).remaining, 9);
    assert_int_equal(client.look(kMidnight + kMinute + 59 * kSecond).remaining, 9);
}

// Ten requests at the end of a window count fully at the start of the next.
void test_twenty_requests_around_the_edge_of_a_window_do_not_pass(void**) {
    Client client(policy_of(Algorithm::kSlidingWindow, "10r/m"));
    assert_int_equal(client.admitted(kMidnight + kMinute - 1, 10), 10);
    assert_int_equal(client.admitted(kMidnight + kMinute, 10), 0);
    assert_int_equal(client.admitted(kMidnight + kMinute + 6 * kSecond - 1, 10), 0);
    assert_int_equal(client.admitted(kMidnight + kMinute + 6 * kSecond, 10), 1);
}

void test_a_cost_above_the_limit_never_fits(void**) {
    Client client(policy_of(Algorithm::kSlidingWindow, "10r/m"));
    assert_rejected(client.request(kMidnight, 11), 10, 0, kNever);
    assert_admitted(client.request(kMidnight, 10), 0, 2 * kMinute);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_eight_earlier_by_half_and_three_now_are_seven_of_ten),
        cmocka_unit_test(test_eight_earlier_by_nine_tenths_and_three_now_are_too_many),
        cmocka_unit_test(test_a_client_is_told_the_moment_at_which_its_request_fits),
        cmocka_unit_test(test_the_moment_is_exact_where_it_is_no_whole_microsecond),
        cmocka_unit_test(test_a_full_window_may_have_to_become_the_earlier_one_first),
        cmocka_unit_test(test_after_two_windows_all_is_forgotten),
        cmocka_unit_test(test_a_request_on_the_edge_belongs_to_the_window_that_begins),
        cmocka_unit_test(test_remaining_is_rounded_down),
        cmocka_unit_test(test_twenty_requests_around_the_edge_of_a_window_do_not_pass),
        cmocka_unit_test(test_a_cost_above_the_limit_never_fits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
