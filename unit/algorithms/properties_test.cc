// Properties of every algorithm over random traces, with a clock that moves forward.
#include <rapidcheck.h>

#include "client.h"
#include "model.h"
#include "property.h"

namespace rate_limit {
namespace {

// Runs `trace` and returns the admitted requests.
std::vector<Admission> admissions(const Trace& trace) {
    Client client(trace.policy);
    std::vector<Admission> all;
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        if (client.request(now, step.cost).allowed) {
            all.push_back({now, step.cost});
        }
    }
    return all;
}

void no_window_holds_more_than_the_bound(const Trace& trace) {
    RC_ASSERT(within_bound(trace.policy, admissions(trace)));
}

void test_no_window_holds_more_than_the_limit_and_the_error_bound(void**) {
    for_every_algorithm("no window holds more than the bound", kPlain, no_window_holds_more_than_the_bound);
}

void decisions_and_numbers_are_those_of_the_definition(const Trace& trace) {
    Client client(trace.policy);
    Model model(trace.policy, trace.policy.rates.rates[0]);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        const bool fits = step.cost == 0 || model.fits(now, step.cost);
        const Micros retry_after = fits ? 0 : model.retry_after(now, step.cost);
        if (fits && step.cost != 0) {
            model.charge(now, step.cost);
        }
        const Decision decision = client.request(now, step.cost);
        RC_ASSERT(decision.allowed == fits);
        RC_ASSERT(decision.limit == model.limit());
        RC_ASSERT(decision.remaining == model.remaining(now));
        RC_ASSERT(decision.reset_after == model.reset_after(now));
        RC_ASSERT(decision.retry_after == retry_after);
        RC_ASSERT(decision.rate == 0);
    }
}

void test_decisions_and_numbers_are_those_of_the_definition(void**) {
    for_every_algorithm("decisions and numbers are those of the definition", kPlain,
                        decisions_and_numbers_are_those_of_the_definition);
}

// Several rates: each by its own definition, all or nothing, and the binding one in front.
void several_rates_hold_together(const Trace& trace) {
    const RateList& rates = trace.policy.rates;
    Client client(trace.policy);
    std::vector<Model> models;
    for (std::uint32_t i = 0; i < rates.size; ++i) {
        models.emplace_back(trace.policy, rates.rates[i]);
    }
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        bool fits = true;
        bool never = false;
        Micros longest = 0;
        for (const Model& model : models) {
            const Micros wait = step.cost == 0 ? 0 : model.retry_after(now, step.cost);
            fits = fits && wait == 0;
            never = never || wait == kNever;
            longest = std::max(longest, wait);
        }
        for (Model& model : models) {
            if (fits && step.cost != 0) {
                model.charge(now, step.cost);
            }
        }
        const Decision decision = client.request(now, step.cost);
        RC_ASSERT(decision.allowed == fits);
        RC_ASSERT(decision.retry_after == (never ? kNever : longest));
        RC_ASSERT(decision.rate < rates.size);
        const Model& binding = models[decision.rate];
        RC_ASSERT(decision.limit == binding.limit());
        RC_ASSERT(decision.remaining == binding.remaining(now));
        RC_ASSERT(decision.reset_after == binding.reset_after(now));
        if (!fits) {
            RC_ASSERT(binding.retry_after(now, step.cost) == decision.retry_after);
            continue;
        }
        for (const Model& model : models) {
            RC_ASSERT(decision.remaining <= model.remaining(now));
        }
    }
}

void test_several_rates_are_charged_together_and_the_binding_one_is_reported(void**) {
    for_every_algorithm("several rates hold together", kSeveralRates, several_rates_hold_together);
}

// A request after retry_after is admitted, and a request one microsecond earlier is not.
void retry_after_is_exact(const Trace& trace) {
    Client client(trace.policy);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        if (step.rates.size != 0) {
            client.set_rates(step.rates);
        }
        const Decision decision = client.request(now, step.cost);
        if (decision.allowed) {
            RC_ASSERT(decision.retry_after == 0);
            continue;
        }
        RC_ASSERT(decision.retry_after == kNever || decision.retry_after > 0);
        if (decision.retry_after == kNever) {
            RC_ASSERT(!client.peek(moved(now, 9 * kYear), step.cost).allowed);
        } else if (decision.retry_after < kForever - now) {
            RC_ASSERT(client.peek(now + decision.retry_after, step.cost).allowed);
            RC_ASSERT(!client.peek(now + decision.retry_after - 1, step.cost).allowed);
        }
    }
}

void test_retry_after_is_exact_to_the_microsecond(void**) {
    for_every_algorithm("retry_after is exact", kPlain, retry_after_is_exact);
}

void test_retry_after_is_exact_with_several_rates_and_min_interval(void**) {
    for_every_algorithm("retry_after with several rates is exact", kSeveralRates | kIntervals,
                        retry_after_is_exact);
}

void test_retry_after_is_exact_when_rejected_requests_count(void**) {
    for_every_algorithm("retry_after with count=all is exact", kCountAll, retry_after_is_exact);
    for_every_algorithm("retry_after with count=all and all else is exact",
                        kCountAll | kStepsBack | kRateChanges | kSeveralRates | kIntervals,
                        retry_after_is_exact);
}

void test_retry_after_is_exact_across_rate_changes_and_steps_back(void**) {
    for_every_algorithm("retry_after across rate changes is exact", kRateChanges, retry_after_is_exact);
    for_every_algorithm("retry_after across steps back is exact", kStepsBack, retry_after_is_exact);
    for_every_algorithm("retry_after across both, with all else, is exact",
                        kStepsBack | kRateChanges | kSeveralRates | kIntervals, retry_after_is_exact);
}

// The whole quota is back after reset_after, and not before.
void reset_after_is_exact(const Trace& trace) {
    Client client(trace.policy);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        const Decision decision = client.request(now, step.cost);
        RC_ASSERT(decision.reset_after >= 0);
        RC_ASSERT((decision.reset_after == 0) == (decision.remaining == decision.limit));
        if (decision.reset_after > 0 && decision.reset_after < kForever - now) {
            RC_ASSERT(client.look(now + decision.reset_after).remaining == decision.limit);
            RC_ASSERT(client.look(now + decision.reset_after - 1).remaining < decision.limit);
        }
    }
}

void test_reset_after_is_exact_also_when_the_clock_steps_back(void**) {
    for_every_algorithm("reset_after is exact", kStepsBack, reset_after_is_exact);
    for_every_algorithm("reset_after with count=all is exact", kStepsBack | kCountAll, reset_after_is_exact);
}

void a_look_changes_nothing(const Trace& trace) {
    Client client(trace.policy);
    Client watched(trace.policy);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        const std::vector<std::uint64_t> before = watched.state();
        const Decision look = watched.request(now, 0);
        RC_ASSERT(look.allowed);
        RC_ASSERT(look.retry_after == 0);
        RC_ASSERT(look.delay == 0);
        RC_ASSERT(watched.state() == before);
        const Decision a = client.request(now, step.cost);
        const Decision b = watched.request(now, step.cost);
        RC_ASSERT(a.allowed == b.allowed);
        RC_ASSERT(client.state() == watched.state());
    }
}

void test_a_cost_of_zero_is_a_look_that_is_allowed_and_changes_nothing(void**) {
    for_every_algorithm("a look changes nothing", kPlain, a_look_changes_nothing);
    for_every_algorithm("a look changes nothing, with all else", kSeveralRates | kIntervals | kCountAll,
                        a_look_changes_nothing);
}

// After any trace, costs that fit together leave the same state and the same numbers in whatever order they
// come.
void order_at_one_instant_does_not_matter(const Trace& trace) {
    Client client(trace.policy);
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        client.request(now, step.cost);
    }
    std::uint64_t left = client.look(now).remaining;
    std::vector<std::uint64_t> costs;
    while (left > 0 && costs.size() < 6) {
        costs.push_back(*random::between<std::uint64_t>(0, std::min(left, kMaxCost)));
        left -= costs.back();
    }
    std::vector<std::uint64_t> shuffled = costs;
    for (std::size_t i = shuffled.size(); i > 1; --i) {
        std::swap(shuffled[i - 1], shuffled[*random::between<std::size_t>(0, i - 1)]);
    }
    Client other = client;
    for (const std::uint64_t cost : costs) {
        RC_ASSERT(client.request(now, cost).allowed);
    }
    for (const std::uint64_t cost : shuffled) {
        RC_ASSERT(other.request(now, cost).allowed);
    }
    RC_ASSERT(client.state() == other.state());
}

void test_the_order_of_calls_at_one_instant_does_not_matter(void**) {
    for_every_algorithm("order does not matter", kPlain, order_at_one_instant_does_not_matter);
    for_every_algorithm("order does not matter on a clock that steps back", kStepsBack,
                        order_at_one_instant_does_not_matter);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_no_window_holds_more_than_the_limit_and_the_error_bound),
        cmocka_unit_test(test_decisions_and_numbers_are_those_of_the_definition),
        cmocka_unit_test(test_several_rates_are_charged_together_and_the_binding_one_is_reported),
        cmocka_unit_test(test_retry_after_is_exact_to_the_microsecond),
        cmocka_unit_test(test_retry_after_is_exact_with_several_rates_and_min_interval),
        cmocka_unit_test(test_retry_after_is_exact_when_rejected_requests_count),
        cmocka_unit_test(test_retry_after_is_exact_across_rate_changes_and_steps_back),
        cmocka_unit_test(test_reset_after_is_exact_also_when_the_clock_steps_back),
        cmocka_unit_test(test_a_cost_of_zero_is_a_look_that_is_allowed_and_changes_nothing),
        cmocka_unit_test(test_the_order_of_calls_at_one_instant_does_not_matter),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
