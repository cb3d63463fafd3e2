// The breaker: when it opens and closes, and the delays between attempts.
#include "redis/breaker.h"

#include <algorithm>

#include "test.h"

namespace rate_limit::redis {
namespace {

void test_the_breaker_starts_closed(void**) {
    const Breaker breaker;
    assert_false(breaker.open());
}

void test_five_failures_in_a_row_open_the_breaker(void**) {
    Breaker breaker;
    for (unsigned i = 1; i < 5; i++) {
        assert_false(breaker.failure());
        assert_false(breaker.open());
    }
    assert_true(breaker.failure());
    assert_true(breaker.open());
}

void test_further_failures_do_not_open_the_breaker_again(void**) {
    Breaker breaker;
    unsigned opened = 0;
    for (unsigned i = 0; i < 1000; i++) {
        opened += breaker.failure() ? 1 : 0;
    }
    assert_int_equal(opened, 1);
    assert_true(breaker.open());
}

void test_a_success_resets_the_count_of_failures(void**) {
    Breaker breaker;
    for (unsigned i = 0; i < 100; i++) {
        if (i % 4 == 0) {
            assert_false(breaker.success());
        }
        assert_false(breaker.failure());
    }
    assert_false(breaker.open());
}

void test_a_success_closes_the_breaker_and_returns_true_once(void**) {
    Breaker breaker;
    breaker.trip();
    assert_true(breaker.success());
    assert_false(breaker.open());
    assert_false(breaker.success());
    for (unsigned i = 1; i < 5; i++) {
        assert_false(breaker.failure());
    }
    assert_true(breaker.failure());
}

void test_a_trip_opens_the_breaker_at_once_and_returns_true_once(void**) {
    Breaker breaker;
    assert_true(breaker.trip());
    assert_true(breaker.open());
    assert_false(breaker.trip());
    assert_false(breaker.failure());
}

void test_after_a_probe_one_failure_opens_the_breaker_again(void**) {
    Breaker breaker;
    breaker.trip();
    assert_true(breaker.half_close());
    assert_false(breaker.open());
    assert_false(breaker.half_close());
    assert_true(breaker.failure());
    assert_true(breaker.open());
    assert_true(breaker.half_close());
    assert_false(breaker.success());
    for (unsigned i = 1; i < 5; i++) {
        assert_false(breaker.failure());
    }
    assert_true(breaker.failure());
}

void test_a_handshake_does_not_change_a_closed_breaker(void**) {
    Breaker breaker;
    for (unsigned i = 1; i < 5; i++) {
        assert_false(breaker.half_close());
        assert_false(breaker.failure());
    }
    assert_false(breaker.half_close());
    assert_true(breaker.failure());
}

void test_delays_double_from_50_ms_to_1_s_and_stay_there(void**) {
    Breaker breaker;
    for (const unsigned expected : {50, 100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000}) {
        assert_int_equal(breaker.next_delay(0), expected);
    }
    for (unsigned i = 0; i < 100'000; i++) {
        breaker.next_delay(0);
    }
    assert_int_equal(breaker.next_delay(0), 1000);
}

void test_a_success_resets_the_delay(void**) {
    Breaker breaker;
    for (unsigned i = 0; i < 7; i++) {
        breaker.next_delay(0);
    }
    breaker.half_close();
    assert_int_equal(breaker.next_delay(0), 1000);
    breaker.success();
    assert_int_equal(breaker.next_delay(0), 50);
}

void test_a_delay_is_shortened_at_random_by_up_to_a_half(void**) {
    for (unsigned attempt = 0; attempt < 8; attempt++) {
        Milliseconds shortest = 1'000'000;
        Milliseconds longest = 0;
        Milliseconds sum = 0;
        Milliseconds whole = 0;
        for (std::uint32_t i = 0; i < 10'000; i++) {
            Breaker breaker;
            for (unsigned before = 0; before < attempt; before++) {
                breaker.next_delay(i * 2654435761U);
            }
            Breaker even = breaker;
            whole = even.next_delay(0);
            const Milliseconds delay = breaker.next_delay(i * 2654435761U);
            shortest = std::min(shortest, delay);
            longest = std::max(longest, delay);
            sum += delay;
        }
        assert_int_equal(whole, std::min(50U << attempt, 1000U));
        assert_int_equal(shortest, whole / 2);
        assert_int_equal(longest, whole);
        assert_in_range(sum / 10'000, whole * 70 / 100, whole * 80 / 100);
    }
    Breaker breaker;
    assert_in_range(breaker.next_delay(~std::uint32_t{0}), 25, 50);
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_breaker_starts_closed),
        cmocka_unit_test(test_five_failures_in_a_row_open_the_breaker),
        cmocka_unit_test(test_further_failures_do_not_open_the_breaker_again),
        cmocka_unit_test(test_a_success_resets_the_count_of_failures),
        cmocka_unit_test(test_a_success_closes_the_breaker_and_returns_true_once),
        cmocka_unit_test(test_a_trip_opens_the_breaker_at_once_and_returns_true_once),
        cmocka_unit_test(test_after_a_probe_one_failure_opens_the_breaker_again),
        cmocka_unit_test(test_a_handshake_does_not_change_a_closed_breaker),
        cmocka_unit_test(test_delays_double_from_50_ms_to_1_s_and_stay_there),
        cmocka_unit_test(test_a_success_resets_the_delay),
        cmocka_unit_test(test_a_delay_is_shortened_at_random_by_up_to_a_half),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
