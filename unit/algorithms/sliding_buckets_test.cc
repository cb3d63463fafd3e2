// sliding_buckets: the sum of the last N sub-windows.
#include "client.h"
#include "expect.h"

namespace rate_limit {
namespace {

Policy buckets(const char* rate, std::uint32_t count) {
    Policy policy = policy_of(Algorithm::kSlidingBuckets, rate);
    policy.buckets = count;
    return policy;
}

void test_what_was_counted_leaves_with_its_sub_window(void**) {
    Client client(buckets("10r/m", 6));
    const Decision decision = client.request(kMidnight + 5 * kSecond, 4);
    assert_int_equal(decision.limit, 10);
    assert_admitted(decision, 6, 55 * kSecond);
    assert_admitted(client.request(kMidnight + 12 * kSecond, 6), 0, 58 * kSecond);
    assert_rejected(client.request(kMidnight + 30 * kSecond), 0, 40 * kSecond, 30 * kSecond);
    assert_rejected(client.request(kMidnight + 30 * kSecond, 4), 0, 40 * kSecond, 30 * kSecond);
    assert_rejected(client.request(kMidnight + 30 * kSecond, 5), 0, 40 * kSecond, 40 * kSecond);
    assert_rejected(client.request(kMidnight + 30 * kSecond, 11), 0, 40 * kSecond, kNever);
    assert_false(client.peek(kMidnight + kMinute - 1).allowed);
    assert_admitted(client.look(kMidnight + kMinute), 4, 10 * kSecond);
    assert_admitted(client.look(kMidnight + 70 * kSecond), 10, 0);
}

// The bound: of a window of P less one sub-window nothing is forgotten, and nothing of P and one is kept.
void test_the_error_is_at_most_one_sub_window(void**) {
    Client client(buckets("1r/m", 6));
    client.request(kMidnight + 10 * kSecond - 1);
    assert_int_equal(client.peek(kMidnight + 10 * kSecond - 1).retry_after, 50 * kSecond + 1);
    client = Client(buckets("1r/m", 6));
    client.request(kMidnight);
    assert_int_equal(client.peek(kMidnight).retry_after, kMinute);
}

// 1 s in 7 sub-windows: 142858 us each, the last reaching beyond the second.
void test_a_sub_window_is_rounded_up(void**) {
    Client client(buckets("1r/s", 7));
    const Micros part = 142'858;
    const Micros now = kMidnight - kMidnight % part;
    client.request(now);
    assert_int_equal(client.peek(now).retry_after, 7 * part);
    assert_false(client.peek(now + 7 * part - 1).allowed);
    assert_true(client.peek(now + 7 * part).allowed);
}

void test_every_number_of_sub_windows_holds_the_limit(void**) {
    for (std::uint32_t count = kMinBuckets; count <= kMaxBuckets; ++count) {
        Client client(buckets("10r/h", count));
        const Micros part = (kHour + count - 1) / count;
        const Micros start = kMidnight - kMidnight % part;
        for (std::uint32_t i = 0; i < count; ++i) {
            client.request(start + i * part);
        }
        // The first of its ten leaves after N sub-windows, then one with each: the ring has gone round by
        // then.
        const std::uint32_t ten = count < 10 ? count : 10;
        assert_int_equal(client.look(start + (count - 1) * part).remaining, 10 - ten);
        for (std::uint32_t i = 0; i < ten; ++i) {
            assert_int_equal(client.look(start + (count + i) * part - 1).remaining, 10 - ten + i);
            assert_int_equal(client.look(start + (count + i) * part).remaining, 10 - ten + i + 1);
        }
    }
}

void test_the_ring_goes_round_many_times(void**) {
    Client client(buckets("3r/s", 3));
    const Micros part = 333'334;
    const Micros start = kMidnight - kMidnight % part;
    for (Micros i = 0; i < 1000; ++i) {
        assert_true(client.request(start + i * part).allowed);
        assert_int_equal(client.look(start + i * part).remaining, i < 2 ? 2 - i : 0);
    }
}

void test_sub_windows_without_a_request_are_empty(void**) {
    Client client(buckets("10r/m", 6));
    client.request(kMidnight, 3);
    client.request(kMidnight + 40 * kSecond, 3);
    client.request(kMidnight + 70 * kSecond, 3);
    assert_int_equal(client.look(kMidnight + 70 * kSecond).remaining, 4);
    assert_int_equal(client.look(kMidnight + 100 * kSecond).remaining, 7);
    assert_int_equal(client.look(kMidnight + 130 * kSecond).remaining, 10);
}

void test_twenty_requests_around_the_edge_of_a_window_do_not_pass(void**) {
    Client client(buckets("10r/m", 10));
    assert_int_equal(client.admitted(kMidnight + kMinute - 1, 10), 10);
    assert_int_equal(client.admitted(kMidnight + kMinute, 10), 0);
    assert_int_equal(client.admitted(kMidnight + kMinute + 54 * kSecond - 1, 10), 0);
    assert_int_equal(client.admitted(kMidnight + kMinute + 54 * kSecond, 10), 10);
}

void test_excess_is_what_is_beyond_the_limit(void**) {
    Client client(buckets("10r/m", 10));
    client.request(kMidnight, 8);
    assert_int_equal(client.request(kMidnight + kSecond, 5).excess_milli, 3000);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_counted_leaves_with_its_sub_window),
        cmocka_unit_test(test_the_error_is_at_most_one_sub_window),
        cmocka_unit_test(test_a_sub_window_is_rounded_up),
        cmocka_unit_test(test_every_number_of_sub_windows_holds_the_limit),
        cmocka_unit_test(test_the_ring_goes_round_many_times),
        cmocka_unit_test(test_sub_windows_without_a_request_are_empty),
        cmocka_unit_test(test_twenty_requests_around_the_edge_of_a_window_do_not_pass),
        cmocka_unit_test(test_excess_is_what_is_beyond_the_limit),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
