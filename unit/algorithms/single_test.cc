// decide_single() decides and writes the same as a Check.
#include <rapidcheck.h>

#include "client.h"
#include "property.h"

namespace rate_limit {
namespace {

void assert_same(const Decision& a, const Decision& b) {
    RC_ASSERT(a.allowed == b.allowed);
    RC_ASSERT(a.rate == b.rate);
    RC_ASSERT(a.limit == b.limit);
    RC_ASSERT(a.remaining == b.remaining);
    RC_ASSERT(a.reset_after == b.reset_after);
    RC_ASSERT(a.retry_after == b.retry_after);
    RC_ASSERT(a.delay == b.delay);
    RC_ASSERT(a.excess_milli == b.excess_milli);
}

// A request of cost 0 is not for decide_single().
void decided_at_once_as_in_steps(const Trace& trace) {
    Client client(trace.policy);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        if (step.rates.size != 0) {
            client.set_rates(step.rates);
        }
        if (step.cost == 0 || !is_single(client.policy(), client.layout())) {
            client.request(now, step.cost);
            continue;
        }
        std::vector<std::uint64_t> state = client.state();
        Decision decision;
        decide_single(client.policy(), client.layout(), state.data(), now, step.cost, &decision);
        assert_same(decision, client.request(now, step.cost));
        RC_ASSERT(state == client.state());
    }
}

void test_one_rate_is_decided_at_once_as_in_steps(void**) {
    for_every_algorithm("decided at once as in steps", kPlain, decided_at_once_as_in_steps);
    for_every_algorithm("also while the clock is set back", kStepsBack, decided_at_once_as_in_steps);
    for_every_algorithm("also under changing rates", kRateChanges | kStepsBack, decided_at_once_as_in_steps);
}

void test_what_is_more_than_one_rate_is_not_single(void**) {
    Policy policy = policy_of(Algorithm::kGcra, "10r/s");
    assert_true(is_single(policy, layout_of(policy)));
    assert_false(is_single(policy, layout_of(policy, 1, 0)));
    policy.count_all = true;
    assert_false(is_single(policy, layout_of(policy)));
    policy.count_all = false;
    policy.min_interval = kSecond;
    assert_false(is_single(policy, layout_of(policy)));
    policy = policy_of(Algorithm::kGcra, "10r/s,100r/m");
    assert_false(is_single(policy, layout_of(policy)));
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rate_is_decided_at_once_as_in_steps),
        cmocka_unit_test(test_what_is_more_than_one_rate_is_not_single),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
