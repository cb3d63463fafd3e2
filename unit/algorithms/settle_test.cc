// A request that turns out to cost less gets the difference back, to the window it was taken from; one that
// costs more is charged the difference, even beyond the limit.
#include <rapidcheck.h>

#include <algorithm>

#include "client.h"
#include "model.h"
#include "property.h"

namespace rate_limit {
namespace {

using State = std::vector<std::uint64_t>;

// A request in flight, or one that has ended.
struct Flight {
    Charge charge;
    std::uint64_t actual;  // the estimate, while the request is in flight
    bool ended;
    Micros ended_at;
};

class Flights {
  public:
    explicit Flights(const Policy& policy)
        : policy_(policy), layout_(layout_of(policy)), state_(words_of(layout_)) {}

    bool request(Micros now, std::uint64_t cost) {
        Check check;
        if (!check.evaluate(policy_, layout_, state_.data(), now, cost).allowed) {
            check.refuse(state_.data());
            return false;
        }
        check.charge(state_.data());
        flights_.push_back({{cost, now}, cost, false, 0});
        return true;
    }

    void settle(std::size_t index, std::uint64_t actual, Micros now) {
        Flight& flight = flights_[index];
        const std::uint64_t cost = flight.charge.cost;
        Check check;
        if (actual < cost) {
            check.evaluate(policy_, layout_, state_.data(), now, cost - actual);
            check.undo(flight.charge, false, state_.data());
        } else if (actual > cost) {
            check.evaluate(policy_, layout_, state_.data(), now, actual - cost);
            check.overdraw(state_.data());
        }
        flight.actual = actual;
        flight.ended = true;
        flight.ended_at = now;
    }

    // Ends a random request in flight, if there is one.
    template <class Actual>
    void settle_one(Micros now, Actual actual) {
        const std::size_t index = *random::between<std::size_t>(0, flights_.size());
        if (index < flights_.size() && !flights_[index].ended) {
            settle(index, actual(flights_[index].charge.cost), now);
        }
    }

    Decision look(Micros now, std::uint64_t cost = 0) const {
        Check check;
        return check.evaluate(policy_, layout_, state_.data(), now, cost);
    }

    std::uint64_t used(Micros now, std::uint32_t rate) const {
        return used_of(policy_, layout_, state_.data(), now, rate);
    }

    const std::vector<Flight>& all() const { return flights_; }

  private:
    Policy policy_;
    StateLayout layout_;
    State state_;
    std::vector<Flight> flights_;
};

Policy settling(Policy policy) {
    policy.overdraft = kOneMore;
    policy.align_first = false;
    return policy;
}

std::uint64_t any_part(std::uint64_t cost) { return *random::between<std::uint64_t>(0, cost); }

// A limiter that has known from the start which requests cost less than their estimates. What a request cost
// more is charged when the request has ended.
Model known_model(const Policy& policy, const Flights& flights) {
    std::vector<Admission> charges;
    for (const Flight& flight : flights.all()) {
        charges.push_back({flight.charge.at, std::min(flight.charge.cost, flight.actual)});
        if (flight.actual > flight.charge.cost) {
            charges.push_back({flight.ended_at, flight.actual - flight.charge.cost});
        }
    }
    std::stable_sort(charges.begin(), charges.end(),
                     [](const Admission& a, const Admission& b) { return a.time < b.time; });
    Model model(policy, policy.rates.rates[0]);
    for (const Admission& charge : charges) {
        model.charge(charge.time, charge.cost);
    }
    return model;
}

// A window gives back exactly what the request did not cost. A bucket may give back less, because part of the
// charge may have drained.
void what_was_too_much_comes_back(const Trace& trace) {
    const Policy policy = settling(trace.policy);
    Flights flights(policy);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        flights.request(now, step.cost);
        const std::uint64_t before = flights.look(now).remaining;
        flights.settle_one(now, any_part);
        const std::uint64_t after = flights.look(now).remaining;
        RC_ASSERT(after >= before);
        if (is_bucket(policy.algorithm)) {
            RC_ASSERT(after <= known_model(policy, flights).remaining(now));
        } else {
            RC_ASSERT(after == known_model(policy, flights).remaining(now));
        }
    }
}

void test_what_was_too_much_comes_back_to_its_window(void**) {
    for_every_algorithm("what was too much comes back", kPlain, what_was_too_much_comes_back);
}

void at_once_nothing_is_lost(const Trace& trace) {
    const Policy policy = settling(trace.policy);
    Flights flights(policy);
    Flights known(policy);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        if (!flights.request(now, step.cost)) {
            known.request(now, step.cost);
            continue;
        }
        const std::uint64_t actual = any_part(step.cost);
        flights.settle(flights.all().size() - 1, actual, now);
        known.request(now, actual);
        RC_ASSERT(flights.look(now).remaining == known.look(now).remaining);
        RC_ASSERT(flights.look(now).reset_after == known.look(now).reset_after || actual == 0);
    }
}

void test_a_request_that_ends_at_once_costs_what_it_cost(void**) {
    for_every_algorithm("at once nothing is lost", kPlain, at_once_nothing_is_lost);
    for_every_algorithm("the same with several rates", kSeveralRates, at_once_nothing_is_lost);
}

// Under each rate, a client owes as much as this rate allows. With sliding_log, the rate that allows most
// decides.
void every_rate_is_owed(const Trace& trace) {
    const Policy policy = settling(trace.policy);
    Flights flights(policy);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        if (step.cost == 0 || !flights.request(now, step.cost)) {
            continue;
        }
        std::uint64_t before[kMaxRates];
        for (std::uint32_t i = 0; i < policy.rates.size; i++) {
            before[i] = flights.used(now, i);
        }
        const std::uint64_t more = any_part(2 * step.cost + 2);
        flights.settle(flights.all().size() - 1, step.cost + more, now);
        for (std::uint32_t i = 0; i < policy.rates.size; i++) {
            const std::uint64_t most = most_used(policy, policy.rates.rates[i]);
            const std::uint64_t after = flights.used(now, i);
            RC_ASSERT(after >= std::min(before[i] + more, most));
            RC_ASSERT(after <= before[i] + more);
        }
    }
}

void test_every_rate_is_owed(void**) {
    for_every_algorithm("every rate is owed", kSeveralRates, every_rate_is_owed);
}

// A debt that is never capped: each request costs at most one limit and two more than its estimate.
std::uint64_t large_debt(const Trace& trace) {
    const std::uint64_t limit = capacity_of(trace.policy, trace.policy.rates.rates[0]);
    return std::min(kMaxCount - limit, trace.steps.size() * (limit + 2));
}

// A request is admitted only if it fits with the actual cost of each request that has ended, and the estimate
// of each request in flight. So only the errors of requests in flight are beyond the limit.
void the_promise_is_kept(const Trace& trace) {
    Policy policy = settling(trace.policy);
    policy.overdraft = large_debt(trace);
    const std::uint64_t most_error = policy.overdraft / std::max<std::size_t>(trace.steps.size(), 1);
    Flights flights(policy);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        const Model known = known_model(policy, flights);
        if (flights.request(now, step.cost) && step.cost != 0) {
            RC_ASSERT(known.fits(now, step.cost));
        }
        flights.settle_one(
            now, [&](std::uint64_t cost) { return any_part(cost + std::min(cost + 2, most_error)); });
    }
    std::vector<Admission> admitted;
    for (const Flight& flight : flights.all()) {
        admitted.push_back({flight.charge.at, std::min(flight.charge.cost, flight.actual)});
    }
    RC_ASSERT(within_bound(policy, admitted));
}

void test_no_more_is_admitted_than_the_limit_and_the_errors(void**) {
    for_every_algorithm("the promise is kept", kPlain, the_promise_is_kept);
}

// Ten a minute are used, and cost more than that: how long until one more fits, if five or more than the
// largest debt are owed. By default the largest debt is the limit.
void test_what_is_owed_is_paid_before_anything_fits(void**) {
    const struct {
        Algorithm algorithm;
        Micros five;
        Micros seven;  // the most, with an overdraft of 7
        Micros most;
    } rows[] = {
        {Algorithm::kTokenBucket, 36 * kSecond, 48 * kSecond, 66 * kSecond},
        {Algorithm::kLeakyBucket, 36 * kSecond, 48 * kSecond, 66 * kSecond},
        {Algorithm::kGcra, 36 * kSecond, 48 * kSecond, 66 * kSecond},
        {Algorithm::kFixedWindow, kMinute, kMinute, kMinute},
        {Algorithm::kSlidingWindow, 84 * kSecond, kMinute + kMinute * 8 / 17 + 1, 93 * kSecond},
        {Algorithm::kSlidingBuckets, kMinute, kMinute, kMinute},
        {Algorithm::kSlidingLog, kMinute, kMinute, kMinute},
    };
    for (const auto& row : rows) {
        for (const std::uint64_t more : {5, 1000, 1'000'000}) {
            for (const std::uint64_t overdraft : {std::uint64_t{7}, kOneMore}) {
                Policy policy = policy_of(row.algorithm, "10r/m");
                policy.overdraft = overdraft;
                Flights flights(policy);
                assert_true(flights.request(kMidnight, 10));
                flights.settle(0, 10 + more, kMidnight);
                const Micros expected = more == 5 ? row.five : overdraft == 7 ? row.seven : row.most;
                const Decision rejected = flights.look(kMidnight, 1);
                if (rejected.allowed || rejected.retry_after != expected) {
                    fail_msg("%s: after %llu retry in %lld", algorithm_name(row.algorithm),
                             static_cast<unsigned long long>(more),
                             static_cast<long long>(rejected.retry_after));
                }
                assert_int_equal(flights.look(kMidnight).remaining, 0);
                assert_true(flights.look(kMidnight + expected, 1).allowed);
                assert_false(flights.look(kMidnight + expected - 1, 1).allowed);
            }
        }
    }
}

// Ten a minute; a request of cost 8 is admitted 30 s after midnight and ends with a cost of 2 after a time.
void test_what_has_left_its_window_or_drained_is_not_given_back(void**) {
    const struct {
        Algorithm algorithm;
        Micros passed;
        std::uint64_t remaining;
    } rows[] = {
        {Algorithm::kTokenBucket, 6 * kSecond, 9},    // 8 used, 1 drained, 6 given back
        {Algorithm::kTokenBucket, 18 * kSecond, 10},  // 3 drained; the 5 that are left are given back
        {Algorithm::kTokenBucket, 48 * kSecond, 10},   {Algorithm::kFixedWindow, 29 * kSecond, 8},
        {Algorithm::kFixedWindow, 30 * kSecond, 10},  // a new window
        {Algorithm::kSlidingWindow, 29 * kSecond, 8},  {Algorithm::kSlidingWindow, kMinute, 9},  // half of 2
        {Algorithm::kSlidingBuckets, 59 * kSecond, 8}, {Algorithm::kSlidingBuckets, kMinute, 10},
        {Algorithm::kSlidingLog, kMinute - 1, 8},      {Algorithm::kSlidingLog, kMinute, 10},
    };
    for (const auto& row : rows) {
        Flights flights(settling(policy_of(row.algorithm, "10r/m")));
        const Micros charged = kMidnight + 30 * kSecond;
        assert_true(flights.request(charged, 8));
        flights.settle(0, 2, charged + row.passed);
        const std::uint64_t remaining = flights.look(charged + row.passed).remaining;
        if (remaining != row.remaining) {
            fail_msg("%s: %llu remaining after %lld", algorithm_name(row.algorithm),
                     static_cast<unsigned long long>(remaining), static_cast<long long>(row.passed));
        }
    }
}

// Later requests of the same client keep their charges.
void test_the_charges_of_other_requests_stay(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Flights flights(settling(policy_of(algorithm, "10r/m")));
        assert_true(flights.request(kMidnight, 10));
        const Micros later = kMidnight + 2 * kMinute;
        assert_true(flights.request(later, 4));
        flights.settle(0, 1, later);
        if (flights.look(later).remaining != 6) {
            fail_msg("%s: %llu remaining", algorithm_name(algorithm),
                     static_cast<unsigned long long>(flights.look(later).remaining));
        }
    }
}

// A bucket does not know which charge has drained: only what cannot have drained is given back.
void test_a_bucket_gives_back_what_cannot_have_drained(void**) {
    Flights flights(settling(policy_of(Algorithm::kTokenBucket, "10r/m")));
    assert_true(flights.request(kMidnight, 5));
    assert_true(flights.request(kMidnight, 5));
    const Micros later = kMidnight + 18 * kSecond;
    flights.settle(1, 1, later);  // 3 have drained, so 2 are given back
    assert_int_equal(flights.look(later).remaining, 5);
}

// The interval between two requests does not depend on their costs, unless the request is undone.
void test_only_a_request_that_is_undone_clears_the_interval(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Policy policy = policy_of(algorithm, "10r/m");
        policy.min_interval = kSecond;
        for (const bool whole : {false, true}) {
            Client client(policy);
            client.request(kMidnight, 2);
            State state = client.state();
            Check check;
            check.evaluate(policy, client.layout(), state.data(), kMidnight, 2);
            check.undo({2, kMidnight}, whole, state.data());
            assert_int_equal(check.evaluate(policy, client.layout(), state.data(), kMidnight, 1).allowed,
                             whole);
        }
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_too_much_comes_back_to_its_window),
        cmocka_unit_test(test_a_request_that_ends_at_once_costs_what_it_cost),
        cmocka_unit_test(test_every_rate_is_owed),
        cmocka_unit_test(test_no_more_is_admitted_than_the_limit_and_the_errors),
        cmocka_unit_test(test_what_is_owed_is_paid_before_anything_fits),
        cmocka_unit_test(test_what_has_left_its_window_or_drained_is_not_given_back),
        cmocka_unit_test(test_the_charges_of_other_requests_stay),
        cmocka_unit_test(test_a_bucket_gives_back_what_cannot_have_drained),
        cmocka_unit_test(test_only_a_request_that_is_undone_clears_the_interval),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
