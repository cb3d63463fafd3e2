// The room that state takes, and how it moves to another layout.
#include <rapidcheck.h>

#include <algorithm>

#include "client.h"
#include "expect.h"
#include "property.h"

namespace rate_limit {
namespace {

Policy with_interval(Policy policy) {
    policy.min_interval = kSecond;
    return policy;
}

void test_one_rate_takes_two_words_but_for_logs_and_buckets(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = policy_of(algorithm, "100r/m");
        const std::size_t words = words_of(layout_of(policy));
        if (algorithm == Algorithm::kSlidingBuckets) {
            assert_true(words <= 2 + 5);
        } else if (algorithm == Algorithm::kSlidingLog) {
            assert_true(words <= 2 + 50);
        } else {
            assert_int_equal(words, 2);
        }
        assert_int_equal(words_of(layout_of(with_interval(policy))), words + 1);
        const std::size_t two = words_of(layout_of(policy_of(algorithm, "100r/m,100r/h")));
        assert_int_equal(two, algorithm == Algorithm::kSlidingLog ? words : 2 * words + 1);
    }
}

void test_a_log_of_a_long_period_takes_more_bytes(void**) {
    assert_int_equal(layout_of(policy_of(Algorithm::kSlidingLog, "5r/h")).log_bytes, 4);
    assert_int_equal(layout_of(policy_of(Algorithm::kSlidingLog, "5r/71m")).log_bytes, 4);
    assert_int_equal(layout_of(policy_of(Algorithm::kSlidingLog, "5r/72m")).log_bytes, 6);
    assert_int_equal(layout_of(policy_of(Algorithm::kSlidingLog, "500r/s,5r/d")).log_bytes, 6);
    assert_int_equal(layout_of(policy_of(Algorithm::kSlidingLog, "500r/s,5r/d")).log_entries, 500);
}

void test_every_word_of_a_state_lies_within_it(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Policy policy = policy_of(algorithm, "10r/m");
        for (const Micros interval : {Micros{0}, kSecond}) {
            policy.min_interval = interval;
            for (std::uint32_t rates = 1; rates <= kMaxRates; rates++) {
                const StateLayout layout = layout_of(policy, rates, 10);
                const std::size_t states = layout.rates * words_per_rate(layout);
                assert_int_equal(words_of(layout), states + (layout.rates > 1) + (interval != 0) + 1);
                assert_in_range(marks_index(layout), states, words_of(layout) - 1);
                assert_in_range(interval_index(layout), states, words_of(layout) - 1);
                assert_int_equal(weight_index(layout), words_of(layout) - 1);
            }
        }
    }
}

void test_equal_shapes_are_those_equal_in_everything(void**) {
    const StateLayout layout = {Algorithm::kSlidingLog, 1, 0, 10, 4, false, false, false};
    assert_true(layout == layout);
    assert_false(layout != layout);
    const StateLayout others[] = {{Algorithm::kGcra, 1, 0, 10, 4, false, false, false},
                                  {Algorithm::kSlidingLog, 2, 0, 10, 4, false, false, false},
                                  {Algorithm::kSlidingLog, 1, 1, 10, 4, false, false, false},
                                  {Algorithm::kSlidingLog, 1, 0, 11, 4, false, false, false},
                                  {Algorithm::kSlidingLog, 1, 0, 10, 6, false, false, false},
                                  {Algorithm::kSlidingLog, 1, 0, 10, 4, true, false, false},
                                  {Algorithm::kSlidingLog, 1, 0, 10, 4, false, true, false},
                                  {Algorithm::kSlidingLog, 1, 0, 10, 4, false, false, true}};
    for (const StateLayout& other : others) {
        assert_true(layout != other);
        assert_false(layout == other);
    }
}

void test_a_shape_holds_its_policy_and_all_that_need_less(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy one = policy_of(algorithm, "10r/m");
        const Policy two = policy_of(algorithm, "10r/m,20r/h");
        const bool log = algorithm == Algorithm::kSlidingLog;
        assert_true(holds(layout_of(one), one));
        assert_true(holds(layout_of(two), two));
        assert_true(holds(layout_of(two), one));
        assert_false(holds(layout_of(one), two));
        assert_true(holds(layout_of(one), policy_of(algorithm, "9r/s")));
        assert_int_equal(holds(layout_of(one), policy_of(algorithm, "11r/m")), !log);
        assert_int_equal(holds(layout_of(one), policy_of(algorithm, "1r/d")), !log);
        assert_true(holds(layout_of(with_interval(one)), one));
        assert_false(holds(layout_of(one), with_interval(one)));
        assert_true(holds(layout_of(one), policy_of(algorithm, "off")));
        const Algorithm other = log ? Algorithm::kGcra : Algorithm::kSlidingLog;
        assert_false(holds(layout_of(one), policy_of(other, "10r/m")));
    }
    Policy buckets = policy_of(Algorithm::kSlidingBuckets, "10r/m");
    const StateLayout layout = layout_of(buckets);
    buckets.buckets = 9;
    assert_false(holds(layout, buckets));
}

void test_a_roomy_shape_holds_any_rates(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const StateLayout layout = layout_of(policy_of(algorithm, "off"), kMaxRates, 100);
        for (const char* rates : {"1r/s", "100r/366d", "1r/s,2r/m,3r/h,4r/d,5r/w,6r/30d,7r/60d,8r/366d"}) {
            assert_true(holds(layout, policy_of(algorithm, rates)));
        }
    }
    const Policy log = policy_of(Algorithm::kSlidingLog, "101r/s");
    assert_false(holds(layout_of(log, kMaxRates, 100), log));
}

// State of the least layout and of one with room to spare answer alike.
void room_to_spare_changes_nothing(const Trace& trace) {
    Client least(trace.policy);
    Client roomy(trace.policy, layout_of(trace.policy, kMaxRates, 1000));
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        const Decision a = least.request(now, step.cost);
        const Decision b = roomy.request(now, step.cost);
        RC_ASSERT(a.allowed == b.allowed);
        RC_ASSERT(a.remaining == b.remaining);
        RC_ASSERT(a.retry_after == b.retry_after);
        RC_ASSERT(a.reset_after == b.reset_after);
    }
}

void test_room_to_spare_changes_nothing(void**) {
    for_every_algorithm("room to spare changes nothing", kStepsBack | kSeveralRates | kIntervals,
                        room_to_spare_changes_nothing);
}

// Whatever a client did, state that moves to a larger layout and back answers as if it had stayed.
void conversion_forgets_nothing(const Trace& trace) {
    Client stays(trace.policy);
    Client moves(trace.policy);
    const StateLayout small = moves.layout();
    const StateLayout large = layout_of(trace.policy, kMaxRates, 1000);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        moves.reshape(moves.layout() == small ? large : small);
        const Decision a = stays.request(now, step.cost);
        const Decision b = moves.request(now, step.cost);
        RC_ASSERT(a.allowed == b.allowed);
        RC_ASSERT(a.remaining == b.remaining);
        RC_ASSERT(a.retry_after == b.retry_after);
        RC_ASSERT(a.reset_after == b.reset_after);
    }
}

void test_conversion_to_a_larger_shape_and_back_forgets_nothing(void**) {
    for_every_algorithm("conversion forgets nothing", kStepsBack | kSeveralRates | kIntervals,
                        conversion_forgets_nothing);
}

void test_an_added_rate_starts_unused_and_the_old_one_goes_on(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(policy_of(algorithm, "10r/m"));
        client.request(kMidnight, 4);
        client.policy().rates = rates_of("10r/m,20r/h");
        client.reshape(layout_of(client.policy()));
        const Decision decision = client.look(kMidnight);
        assert_int_equal(decision.rate, 0);
        assert_int_equal(decision.remaining, 6);
        assert_int_equal(client.admitted(kMidnight, 20), 6);
    }
}

void test_a_log_that_grows_or_shrinks_keeps_its_newest_entries(void**) {
    Client client(policy_of(Algorithm::kSlidingLog, "5r/m"));
    for (Micros second = 0; second < 5; ++second) {
        client.request(kMidnight + second * kSecond);
    }
    client.set_rates(rates_of("50r/m"));
    assert_int_equal(client.layout().log_entries, 50);
    assert_int_equal(client.look(kMidnight + 5 * kSecond).remaining, 45);
    assert_int_equal(client.admitted(kMidnight + 10 * kSecond, 60), 45);
    client.policy().rates = rates_of("5r/m");
    client.reshape(layout_of(client.policy()));
    assert_int_equal(client.look(kMidnight + 10 * kSecond).remaining, 0);
    assert_int_equal(client.peek(kMidnight + 10 * kSecond).retry_after, kMinute);
}

// 4 bytes cannot express a time of a day ago: such entries are removed.
void test_a_log_that_narrows_does_not_make_old_entries_young(void**) {
    Client client(policy_of(Algorithm::kSlidingLog, "5r/d"));
    const Micros turn = Micros{1} << 32;
    client.request(kMidnight, 3);
    client.request(kMidnight + turn + 30 * kSecond);
    client.policy().rates = rates_of("5r/m");
    client.reshape(layout_of(client.policy()));
    assert_int_equal(client.layout().log_bytes, 4);
    assert_admitted(client.look(kMidnight + turn + 40 * kSecond), 4, 50 * kSecond);
    assert_int_equal(client.admitted(kMidnight + turn + 40 * kSecond, 9), 4);
    assert_rejected(client.request(kMidnight + turn + 40 * kSecond), 0, kMinute, 50 * kSecond);
}

void test_an_added_interval_starts_with_the_next_request_and_a_kept_one_goes_on(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Client client(policy_of(algorithm, "10r/m"));
        client.request(kMidnight);
        client.policy().min_interval = 3 * kSecond;
        client.reshape(layout_of(client.policy()));
        assert_true(client.request(kMidnight + 1).allowed);
        client.policy().rates = rates_of("10r/m,20r/h");
        client.reshape(layout_of(client.policy()));
        assert_int_equal(client.request(kMidnight + 1 + kSecond).retry_after, 2 * kSecond);
        client.policy().min_interval = 0;
        client.reshape(layout_of(client.policy()));
        assert_true(client.request(kMidnight + 1 + kSecond).allowed);
    }
}

void test_only_the_same_algorithm_and_sub_windows_convert(void**) {
    for (const Algorithm from : kEveryAlgorithm) {
        for (const Algorithm to : kEveryAlgorithm) {
            const bool same =
                can_convert(layout_of(policy_of(from, "1r/s")), layout_of(policy_of(to, "5r/d,6r/h")));
            assert_int_equal(same, from == to);
        }
    }
    Policy buckets = policy_of(Algorithm::kSlidingBuckets, "10r/m");
    const StateLayout layout = layout_of(buckets);
    buckets.buckets = 20;
    assert_false(can_convert(layout, layout_of(buckets)));
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rate_takes_two_words_but_for_logs_and_buckets),
        cmocka_unit_test(test_a_log_of_a_long_period_takes_more_bytes),
        cmocka_unit_test(test_every_word_of_a_state_lies_within_it),
        cmocka_unit_test(test_equal_shapes_are_those_equal_in_everything),
        cmocka_unit_test(test_a_shape_holds_its_policy_and_all_that_need_less),
        cmocka_unit_test(test_a_roomy_shape_holds_any_rates),
        cmocka_unit_test(test_room_to_spare_changes_nothing),
        cmocka_unit_test(test_conversion_to_a_larger_shape_and_back_forgets_nothing),
        cmocka_unit_test(test_an_added_rate_starts_unused_and_the_old_one_goes_on),
        cmocka_unit_test(test_a_log_that_grows_or_shrinks_keeps_its_newest_entries),
        cmocka_unit_test(test_a_log_that_narrows_does_not_make_old_entries_young),
        cmocka_unit_test(test_an_added_interval_starts_with_the_next_request_and_a_kept_one_goes_on),
        cmocka_unit_test(test_only_the_same_algorithm_and_sub_windows_convert),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
