// sliding_log: the time of every request, and no window of any phase above the limit.
#include "client.h"
#include "expect.h"

namespace rate_limit {
namespace {

Policy log(const char* rates) { return policy_of(Algorithm::kSlidingLog, rates); }

void test_a_request_counts_for_exactly_one_period(void**) {
    Client client(log("2r/m"));
    const Decision decision = client.request(kMidnight);
    assert_int_equal(decision.limit, 2);
    assert_admitted(decision, 1, kMinute);
    assert_admitted(client.request(kMidnight + 10 * kSecond), 0, kMinute);
    assert_rejected(client.request(kMidnight + 20 * kSecond), 0, 50 * kSecond, 40 * kSecond);
    assert_rejected(client.request(kMidnight + kMinute - 1), 0, 10 * kSecond + 1, 1);
    assert_admitted(client.request(kMidnight + kMinute), 0, kMinute);
    assert_rejected(client.request(kMidnight + kMinute, 2), 0, kMinute, kMinute);
}

void test_two_requests_in_one_microsecond_are_two(void**) {
    Client client(log("2r/m"));
    assert_true(client.request(kMidnight).allowed);
    assert_int_equal(client.look(kMidnight).remaining, 1);
    assert_true(client.request(kMidnight).allowed);
    assert_int_equal(client.look(kMidnight).remaining, 0);
    assert_false(client.request(kMidnight).allowed);
}

void test_twenty_requests_around_the_edge_of_a_window_do_not_pass(void**) {
    Client client(log("10r/m"));
    assert_int_equal(client.admitted(kMidnight + kMinute - 1, 10), 10);
    assert_int_equal(client.admitted(kMidnight + kMinute, 10), 0);
    assert_int_equal(client.admitted(kMidnight + 2 * kMinute - 2, 10), 0);
    assert_int_equal(client.admitted(kMidnight + 2 * kMinute - 1, 10), 10);
}

void test_a_cost_is_so_many_entries(void**) {
    Client client(log("10r/m"));
    assert_admitted(client.request(kMidnight, 4), 6, kMinute);
    assert_admitted(client.request(kMidnight + kSecond, 6), 0, kMinute);
    assert_rejected(client.request(kMidnight + 2 * kSecond, 4), 0, 59 * kSecond, 58 * kSecond);
    assert_rejected(client.request(kMidnight + 2 * kSecond, 5), 0, 59 * kSecond, 59 * kSecond);
    assert_rejected(client.request(kMidnight + 2 * kSecond, 11), 0, 59 * kSecond, kNever);
    assert_int_equal(client.peek(kMidnight + 2 * kSecond, 5).excess_milli, 5000);
    assert_admitted(client.look(kMidnight + kMinute), 4, kSecond);
}

// Every phase of the ring, with entries that wrap.
void test_the_ring_goes_round_many_times(void**) {
    for (std::uint64_t limit = 1; limit <= 9; ++limit) {
        Policy policy = log("1r/s");
        policy.rates.rates[0].count = limit;
        Client client(policy);
        for (Micros i = 0; i < 100; ++i) {
            const Micros now = kMidnight + i * (kSecond / limit + 1);
            assert_true(client.request(now).allowed);
            assert_int_equal(client.look(now).remaining,
                             static_cast<std::uint64_t>(i) + 1 < limit ? limit - i - 1 : 0);
        }
    }
}

// Of a time the low bytes are kept: no gap may make an old entry look young again.
void test_an_old_request_never_counts_again(void**) {
    for (const char* rate : {"3r/s", "3r/h", "3r/71m", "3r/72m", "3r/d", "3r/366d"}) {
        const Policy policy = log(rate);
        const Micros period = policy.rates.rates[0].period;
        for (unsigned bits = 20; bits <= 50; ++bits) {
            const Micros gap = Micros{1} << bits;
            for (const Micros off : {Micros{-1}, Micros{0}, Micros{1}, kSecond / 2}) {
                Client client(policy);
                client.request(kMidnight, 2);
                const std::uint32_t left = gap + off < period ? 1 : 3;
                assert_int_equal(client.look(kMidnight + gap + off).remaining, left);
                assert_true(client.request(kMidnight + gap + off).allowed);
                assert_int_equal(client.look(kMidnight + gap + off).remaining, left - 1);
            }
        }
    }
}

// All rates share one log; each rate counts the entries within its period.
void test_several_rates_read_one_log(void**) {
    Client client(log("2r/s,5r/m"));
    for (Micros second = 0; second < 2; ++second) {
        assert_int_equal(client.admitted(kMidnight + second * kSecond, 3), 2);
    }
    const Decision decision = client.request(kMidnight + 2 * kSecond);
    assert_int_equal(decision.rate, 1);
    assert_int_equal(decision.limit, 5);
    assert_admitted(decision, 0, kMinute);
    const Decision rejected = client.request(kMidnight + 3 * kSecond);
    assert_int_equal(rejected.rate, 1);
    assert_rejected(rejected, 0, 59 * kSecond, 57 * kSecond);
    assert_int_equal(client.admitted(kMidnight + kMinute, 3), 2);
}

// Entries for the longer period do not replace those that the shorter one needs, in any order of the rates.
void test_the_order_of_rates_does_not_matter(void**) {
    Client a(log("3r/s,7r/m,9r/h"));
    Client b(log("9r/h,3r/s,7r/m"));
    Micros now = kMidnight;
    for (int i = 0; i < 2000; ++i) {
        now += (i * 7919) % 1'300'000;
        const Decision first = a.request(now);
        const Decision second = b.request(now);
        assert_int_equal(first.allowed, second.allowed);
        assert_int_equal(first.retry_after, second.retry_after);
        assert_int_equal(first.remaining, second.remaining);
    }
}

// After a step back the entries keep their distances.
void test_a_set_back_clock_takes_the_log_along(void**) {
    Client client(log("3r/m"));
    client.request(kMidnight);
    client.request(kMidnight + 20 * kSecond);
    client.request(kMidnight + 30 * kSecond);
    const Micros back = kMidnight - kDay;
    assert_rejected(client.request(back), 0, kMinute, 30 * kSecond);
    assert_rejected(client.request(back + kSecond), 0, 59 * kSecond, 29 * kSecond);
    assert_admitted(client.request(back + 30 * kSecond), 0, kMinute);
    assert_rejected(client.request(back + 30 * kSecond), 0, kMinute, 20 * kSecond);
    assert_admitted(client.request(back + 50 * kSecond), 0, kMinute);
    assert_admitted(client.request(back + 60 * kSecond), 0, kMinute);
}

void test_a_clock_set_back_to_the_beginning_of_time_takes_the_log_along(void**) {
    Client client(log("3r/m"));
    client.request(kMidnight);
    client.request(kMidnight + 20 * kSecond, 2);
    assert_rejected(client.request(1), 0, kMinute, 40 * kSecond);
    assert_true(client.request(1 + 40 * kSecond).allowed);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_request_counts_for_exactly_one_period),
        cmocka_unit_test(test_two_requests_in_one_microsecond_are_two),
        cmocka_unit_test(test_twenty_requests_around_the_edge_of_a_window_do_not_pass),
        cmocka_unit_test(test_a_cost_is_so_many_entries),
        cmocka_unit_test(test_the_ring_goes_round_many_times),
        cmocka_unit_test(test_an_old_request_never_counts_again),
        cmocka_unit_test(test_several_rates_read_one_log),
        cmocka_unit_test(test_the_order_of_rates_does_not_matter),
        cmocka_unit_test(test_a_set_back_clock_takes_the_log_along),
        cmocka_unit_test(test_a_clock_set_back_to_the_beginning_of_time_takes_the_log_along),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
