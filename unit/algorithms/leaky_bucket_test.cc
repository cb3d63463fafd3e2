// leaky_bucket: limit_req's queue, its burst, its delays and its excess.
#include <algorithm>
#include <random>

#include "client.h"
#include "expect.h"
#include "model.h"

namespace rate_limit {
namespace {

Policy leaky(const char* rate, std::uint64_t burst, std::uint64_t delay) {
    Policy policy = policy_of(Algorithm::kLeakyBucket, rate);
    policy.burst = burst;
    policy.delay = delay;
    return policy;
}

// The computation of nginx's limit_req, in its units: milliseconds and 1/1000 requests.
class LimitReq {
  public:
    struct Answer {
        bool allowed;
        std::int64_t excess;
        std::int64_t delay;
    };

    LimitReq(std::int64_t rate, std::int64_t burst, std::int64_t delay)
        : rate_(rate), burst_(burst), delay_(delay) {}

    Answer request(std::int64_t now) {
        std::int64_t excess = 0;
        if (seen_) {
            excess = std::max<std::int64_t>(0, excess_ - rate_ * (now - last_) / 1000 + 1000);
            if (excess > burst_ * 1000) {
                return {false, excess, 0};
            }
        }
        seen_ = true;
        excess_ = excess;
        last_ = now;
        const bool delayed = delay_ >= 0 && excess > delay_ * 1000;
        return {true, delayed ? excess : 0, delayed ? (excess - delay_ * 1000) * 1000 / rate_ : 0};
    }

  private:
    std::int64_t rate_;  // 1/1000 requests a second
    std::int64_t burst_;
    std::int64_t delay_;  // requests; less than 0 for nodelay
    bool seen_ = false;
    std::int64_t excess_ = 0;
    std::int64_t last_ = 0;
};

// Rates and times at which limit_req does not round: both must then agree in everything.
void test_outcome_excess_and_delay_are_those_of_limit_req(void**) {
    const struct {
        const char* rate;
        std::int64_t per_second;  // 1/1000 requests
        std::int64_t grid;        // milliseconds
    } rates[] = {{"10r/s", 10'000, 1},
                 {"1r/s", 1'000, 1},
                 {"60r/m", 1'000, 1},
                 {"30r/m", 500, 2},
                 {"250r/s", 250'000, 1}};
    std::mt19937 random(42);
    for (const auto& rate : rates) {
        for (const int burst : {0, 1, 5, 20}) {
            for (const int delay : {-1, 0, 1, 3, 30}) {
                Client client(leaky(rate.rate, burst, delay < 0 ? kNoDelay : delay));
                LimitReq nginx(rate.per_second, burst, delay);
                std::int64_t now = kMidnight / 1000;
                const auto most = static_cast<unsigned>(2'000'000 / rate.per_second / rate.grid);
                for (int i = 0; i < 2000; ++i) {
                    now +=
                        static_cast<std::int64_t>(random() % 3 == 0 ? random() % (most * 2) : random() % 2) *
                        rate.grid;
                    const LimitReq::Answer expected = nginx.request(now);
                    const Decision decision = client.request(now * 1000);
                    assert_int_equal(decision.allowed, expected.allowed);
                    assert_int_equal(decision.excess_milli, expected.excess);
                    assert_int_equal(decision.delay / 1000, expected.delay);
                }
            }
        }
    }
}

void test_without_burst_the_second_request_is_rejected(void**) {
    Client client(leaky("2r/s", 0, 0));
    const Decision decision = client.request(kMidnight);
    assert_int_equal(decision.limit, 1);
    assert_int_equal(decision.delay, 0);
    assert_admitted(decision, 0, 500'000);
    assert_rejected(client.request(kMidnight), 0, 500'000, 500'000);
    assert_int_equal(client.peek(kMidnight).excess_milli, 1000);
    assert_rejected(client.request(kMidnight + 499'999), 0, 1, 1);
    assert_admitted(client.request(kMidnight + 500'000), 0, 500'000);
}

void test_the_burst_is_delayed_so_that_requests_leave_at_the_rate(void**) {
    Client client(leaky("10r/s", 5, 0));
    for (Micros i = 0; i <= 5; ++i) {
        const Decision decision = client.request(kMidnight);
        assert_int_equal(decision.limit, 6);
        assert_int_equal(decision.delay, i * 100'000);
        assert_int_equal(decision.excess_milli, i * 1000);
        assert_admitted(decision, 5 - i, (i + 1) * 100'000);
    }
    assert_rejected(client.request(kMidnight), 0, 600'000, 100'000);
    assert_int_equal(client.request(kMidnight + 100'000).delay, 500'000);
    assert_int_equal(client.request(kMidnight + 250'000).delay, 450'000);
    assert_false(client.request(kMidnight + 250'000).allowed);
}

void test_nodelay_admits_the_burst_without_delay(void**) {
    Client client(leaky("10r/s", 5, kNoDelay));
    for (int i = 0; i <= 5; ++i) {
        const Decision decision = client.request(kMidnight);
        assert_true(decision.allowed);
        assert_int_equal(decision.delay, 0);
        assert_int_equal(decision.excess_milli, 0);
    }
    const Decision decision = client.request(kMidnight);
    assert_rejected(decision, 0, 600'000, 100'000);
    assert_int_equal(decision.excess_milli, 6000);
}

// burst=12 delay=8 rate=5r/s, the example of nginx's documentation: 8 at once, 4 delayed, the rest rejected.
void test_delay_lets_the_first_of_the_burst_pass_at_once(void**) {
    Client client(leaky("5r/s", 12, 8));
    for (Micros i = 0; i <= 12; ++i) {
        const Decision decision = client.request(kMidnight);
        assert_true(decision.allowed);
        assert_int_equal(decision.delay, i <= 8 ? 0 : (i - 8) * 200'000);
    }
    assert_false(client.request(kMidnight).allowed);
    assert_int_equal(client.request(kMidnight, 0).delay, 0);
}

void test_a_delay_of_a_part_of_a_microsecond_is_rounded_up(void**) {
    Client client(leaky("3r/s", 5, 0));
    client.request(kMidnight);
    assert_int_equal(client.request(kMidnight).delay, 333'334);
    assert_int_equal(client.request(kMidnight).delay, 666'667);
    assert_int_equal(client.request(kMidnight).delay, 1'000'000);
}

void test_a_cost_leaves_with_the_last_of_its_requests(void**) {
    Client client(leaky("10r/s", 9, 0));
    Decision decision = client.request(kMidnight, 3);
    assert_int_equal(decision.delay, 200'000);
    assert_admitted(decision, 7, 300'000);
    decision = client.request(kMidnight, 7);
    assert_int_equal(decision.delay, 900'000);
    assert_admitted(decision, 0, 1'000'000);
    assert_rejected(client.request(kMidnight, 2), 0, 1'000'000, 200'000);
    assert_rejected(client.request(kMidnight, 11), 0, 1'000'000, kNever);
}

// A leak of 0.5 requests a second over two spans of 3 s drains 3; rounded down at each it would be 2.
void test_half_a_request_a_second_drains_three_in_two_spans_of_three_seconds(void**) {
    Client client(leaky("1r/2s", 9, kNoDelay));
    client.request(kMidnight, 10);
    assert_admitted(client.request(kMidnight + 3 * kSecond), 0, 19 * kSecond);
    assert_int_equal(client.admitted(kMidnight + 6 * kSecond, 10), 2);
}

void test_a_look_is_never_delayed(void**) {
    Client client(leaky("10r/s", 5, 0));
    client.request(kMidnight, 4);
    const Decision decision = client.look(kMidnight);
    assert_admitted(decision, 2, 400'000);
    assert_int_equal(decision.delay, 0);
    assert_int_equal(decision.excess_milli, 0);
}

// Delayed requests leave one by one at the rate: no two closer than it allows, whenever they came.
void test_delayed_requests_leave_no_closer_than_the_rate_allows(void**) {
    Policy policy = leaky("7r/s", 20, 0);
    const Micros apart = kSecond / 7;
    Client client(policy);
    std::mt19937 random(7);
    Micros now = kMidnight;
    Micros left = 0;
    for (int i = 0; i < 20'000; ++i) {
        now += random() % 3 == 0 ? static_cast<Micros>(random() % 600'000) : 0;
        const Decision decision = client.request(now);
        if (decision.allowed) {
            assert_true(now + decision.delay - left >= apart);
            left = now + decision.delay;
        }
    }
}

void test_of_several_rates_the_longest_delay_counts(void**) {
    Policy policy = policy_of(Algorithm::kLeakyBucket, "10r/s,60r/m");
    policy.burst = 5;
    policy.delay = 0;
    Client client(policy);
    assert_int_equal(client.request(kMidnight).delay, 0);
    assert_int_equal(client.request(kMidnight).delay, kSecond);
    assert_int_equal(client.request(kMidnight).delay, 2 * kSecond);
    policy.rates = rates_of("60r/m,10r/s");
    Client other(policy);
    other.request(kMidnight);
    assert_int_equal(other.request(kMidnight).delay, kSecond);
}

// As in limit_req, where each location has a burst of its own over the same zone.
void test_a_smaller_burst_over_the_same_state_gives_nothing_back(void**) {
    for (const bool all : {false, true}) {
        Policy policy = leaky("1r/s", 20, kNoDelay);
        policy.ceiling = 21;
        policy.count_all = all;
        Client client(policy);
        assert_int_equal(client.admitted(kMidnight, 21), 21);
        client.policy().burst = 0;
        assert_rejected(client.request(kMidnight + kSecond), 0, 20 * kSecond, 20 * kSecond);
        client.policy().burst = 20;
        assert_int_equal(client.admitted(kMidnight + kSecond, 5), 1);
        client.policy().burst = 0;
        assert_true(client.request(kMidnight + 22 * kSecond).allowed);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_outcome_excess_and_delay_are_those_of_limit_req),
        cmocka_unit_test(test_without_burst_the_second_request_is_rejected),
        cmocka_unit_test(test_the_burst_is_delayed_so_that_requests_leave_at_the_rate),
        cmocka_unit_test(test_nodelay_admits_the_burst_without_delay),
        cmocka_unit_test(test_delay_lets_the_first_of_the_burst_pass_at_once),
        cmocka_unit_test(test_a_delay_of_a_part_of_a_microsecond_is_rounded_up),
        cmocka_unit_test(test_a_cost_leaves_with_the_last_of_its_requests),
        cmocka_unit_test(test_half_a_request_a_second_drains_three_in_two_spans_of_three_seconds),
        cmocka_unit_test(test_a_look_is_never_delayed),
        cmocka_unit_test(test_delayed_requests_leave_no_closer_than_the_rate_allows),
        cmocka_unit_test(test_of_several_rates_the_longest_delay_counts),
        cmocka_unit_test(test_a_smaller_burst_over_the_same_state_gives_nothing_back),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
