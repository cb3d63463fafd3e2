// token_bucket: a number of tokens, refilled at the rate.
#include "client.h"
#include "expect.h"

namespace rate_limit {
namespace {

Policy bucket(const char* rate, std::uint32_t capacity) {
    Policy policy = policy_of(Algorithm::kTokenBucket, rate);
    policy.capacity = capacity;
    return policy;
}

void test_a_new_client_has_a_full_bucket(void**) {
    const Client client(bucket("10r/s", 25));
    const Decision decision = client.look(kMidnight);
    assert_int_equal(decision.limit, 25);
    assert_admitted(decision, 25, 0);
}

void test_the_capacity_is_the_count_unless_set(void**) {
    assert_int_equal(Client(bucket("10r/s", 0)).look(kMidnight).limit, 10);
    assert_int_equal(Client(bucket("10r/s", 3)).look(kMidnight).limit, 3);
    assert_int_equal(Client(bucket("10r/s", 300)).look(kMidnight).limit, 300);
}

void test_the_whole_capacity_is_spent_at_once_and_refilled_at_the_rate(void**) {
    Client client(bucket("10r/s", 25));
    assert_int_equal(client.admitted(kMidnight, 30), 25);
    assert_int_equal(client.admitted(kMidnight + kSecond, 30), 10);
    assert_int_equal(client.admitted(kMidnight + 2 * kSecond, 30), 10);
    assert_int_equal(client.admitted(kMidnight + kHour, 30), 25);
}

void test_the_numbers_of_an_admitted_request_are_those_after_it(void**) {
    Client client(bucket("10r/s", 5));
    assert_admitted(client.request(kMidnight), 4, 100'000);
    assert_admitted(client.request(kMidnight, 3), 1, 400'000);
    assert_admitted(client.request(kMidnight + 50'000), 0, 450'000);
    assert_admitted(client.look(kMidnight + 50'000), 0, 450'000);
}

void test_a_rejected_request_is_told_when_its_cost_will_fit(void**) {
    Client client(bucket("10r/s", 5));
    client.request(kMidnight, 5);
    assert_rejected(client.request(kMidnight), 0, 500'000, 100'000);
    assert_rejected(client.request(kMidnight, 3), 0, 500'000, 300'000);
    assert_rejected(client.request(kMidnight + 99'999), 0, 400'001, 1);
    assert_rejected(client.request(kMidnight + 150'000, 5), 1, 350'000, 350'000);
    assert_admitted(client.request(kMidnight + 150'000), 0, 450'000);
}

void test_a_wait_that_is_no_whole_microsecond_is_rounded_up(void**) {
    Client client(bucket("3r/s", 1));
    client.request(kMidnight);
    assert_rejected(client.request(kMidnight), 0, 333'334, 333'334);
    assert_false(client.peek(kMidnight + 333'333).allowed);
    assert_true(client.peek(kMidnight + 333'334).allowed);
}

// The third of a microsecond that the wait was rounded up by is not lost to the client.
void test_parts_of_a_token_are_kept(void**) {
    Client client(bucket("3r/s", 2));
    client.request(kMidnight, 2);
    assert_true(client.request(kMidnight + 333'334).allowed);
    assert_true(client.request(kMidnight + 666'667).allowed);
    assert_true(client.request(kMidnight + 1'000'000).allowed);
    assert_false(client.request(kMidnight + 1'333'333).allowed);
    assert_true(client.request(kMidnight + 1'333'334).allowed);
}

// 0.5 tokens a second over two spans of 3 s are 3 tokens; rounded down at each step they would be 2.
void test_half_a_token_a_second_gives_three_in_two_spans_of_three_seconds(void**) {
    Client client(bucket("1r/2s", 10));
    client.request(kMidnight, 10);
    assert_int_equal(client.look(kMidnight + 3 * kSecond).remaining, 1);
    assert_admitted(client.request(kMidnight + 3 * kSecond), 0, 19 * kSecond);
    assert_int_equal(client.admitted(kMidnight + 6 * kSecond, 10), 2);
}

void test_a_cost_above_the_capacity_never_fits(void**) {
    Client client(bucket("10r/s", 5));
    assert_rejected(client.request(kMidnight, 6), 5, 0, kNever);
    assert_rejected(client.request(kMidnight, kMaxCost), 5, 0, kNever);
    assert_admitted(client.request(kMidnight, 5), 0, 500'000);
    assert_rejected(client.request(kMidnight, 6), 0, 500'000, kNever);
}

void test_excess_is_what_is_missing(void**) {
    Client client(bucket("10r/s", 5));
    assert_int_equal(client.request(kMidnight, 5).excess_milli, 0);
    assert_int_equal(client.request(kMidnight).excess_milli, 1000);
    assert_int_equal(client.request(kMidnight + 50'000).excess_milli, 500);
    assert_int_equal(client.request(kMidnight + 50'000, 4).excess_milli, 3500);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_new_client_has_a_full_bucket),
        cmocka_unit_test(test_the_capacity_is_the_count_unless_set),
        cmocka_unit_test(test_the_whole_capacity_is_spent_at_once_and_refilled_at_the_rate),
        cmocka_unit_test(test_the_numbers_of_an_admitted_request_are_those_after_it),
        cmocka_unit_test(test_a_rejected_request_is_told_when_its_cost_will_fit),
        cmocka_unit_test(test_a_wait_that_is_no_whole_microsecond_is_rounded_up),
        cmocka_unit_test(test_parts_of_a_token_are_kept),
        cmocka_unit_test(test_half_a_token_a_second_gives_three_in_two_spans_of_three_seconds),
        cmocka_unit_test(test_a_cost_above_the_capacity_never_fits),
        cmocka_unit_test(test_excess_is_what_is_missing),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
