// Draws policies and traces. Here, and not in the header, because RapidCheck's templates are slow to compile.
#include "trace.h"

#include <ostream>

namespace rate_limit {

std::ostream& operator<<(std::ostream& out, const RateList& list) {
    for (std::uint32_t i = 0; i < list.size; ++i) {
        out << (i == 0 ? "" : ",") << list.rates[i].count << "r/" << list.rates[i].period << "us";
    }
    return out;
}

std::ostream& operator<<(std::ostream& out, const Policy& policy) {
    out << algorithm_name(policy.algorithm) << " rate=" << policy.rates;
    out << " burst=" << policy.burst << " capacity=" << policy.capacity << " buckets=" << policy.buckets
        << " delay=" << policy.delay << " min_interval=" << policy.min_interval << "us";
    return out << (policy.align_first ? " align=first" : "") << (policy.count_all ? " count=all" : "");
}

std::ostream& operator<<(std::ostream& out, const Trace& trace) {
    out << trace.policy << "\n";
    Micros now = trace.start;
    for (const Step& step : trace.steps) {
        now = moved(now, step.move);
        out << "  at " << now << " (" << std::showpos << step.move << std::noshowpos << ") cost "
            << step.cost;
        if (step.rates.size != 0) {
            out << " rate=" << step.rates;
        }
        out << "\n";
    }
    return out;
}

namespace random {

rc::Gen<std::uint64_t> any_count(Algorithm algorithm) {
    using Count = std::uint64_t;
    if (has_state<StateKind::kLog>(algorithm)) {
        return rc::gen::weightedOneOf<Count>({{6, between<Count>(1, 12)}, {1, between<Count>(1, 300)}});
    }
    return rc::gen::weightedOneOf<Count>(
        {{6, between<Count>(1, 12)},
         {2, between<Count>(1, 1000)},
         {1, between<Count>(1, kMaxSmallCount)},
         {1, between<Count>(1, kMaxCount)},
         {1, one_of<Count>({999'999'937, kMaxSmallCount, kMaxSmallCount + 1, kMaxCount - 1, kMaxCount})}});
}

// Whole seconds, as an operator writes them.
rc::Gen<Micros> any_period() {
    const auto seconds = rc::gen::weightedOneOf<Micros>(
        {{3, one_of<Micros>({1, 60, 3600, kDay / kSecond, 7 * kDay / kSecond, kMaxPeriod / kSecond})},
         {2, between<Micros>(1, 100)},
         {1, between<Micros>(1, kMaxPeriod / kSecond)}});
    return rc::gen::map(seconds, [](Micros value) { return value * kSecond; });
}

Rate draw_rate(Algorithm algorithm) {
    const std::uint64_t count = *any_count(algorithm);
    return {count, *any_period()};
}

RateList draw_rates(Algorithm algorithm, bool several) {
    RateList list{};
    list.size = several ? *between<std::uint32_t>(2, 4) : 1;
    for (std::uint32_t i = 0; i < list.size; ++i) {
        list.rates[i] = draw_rate(algorithm);
    }
    return list;
}

Policy draw_policy(Algorithm algorithm, unsigned kind) {
    Policy policy;
    policy.algorithm = algorithm;
    policy.rates = draw_rates(algorithm, (kind & kSeveralRates) != 0);
    if (takes<kTakesCapacity>(algorithm)) {
        policy.capacity = *rc::gen::oneOf(rc::gen::just<std::uint64_t>(0), any_count(algorithm));
    }
    if (takes<kTakesDelay>(algorithm)) {
        policy.delay = *rc::gen::oneOf(rc::gen::just(kNoDelay), between<std::uint64_t>(0, 10));
    }
    if (takes<kTakesBurst>(algorithm)) {
        policy.burst = *any_count(algorithm) - 1;
    }
    if (takes<kTakesAlign>(algorithm)) {
        policy.align_first = *rc::gen::arbitrary<bool>();
    }
    if (takes<kTakesBuckets>(algorithm)) {
        policy.buckets = *rc::gen::oneOf(between(kMinBuckets, 12U), between(kMinBuckets, kMaxBuckets));
    }
    if ((kind & kIntervals) != 0) {
        policy.min_interval =
            *between<Micros>(1, 2 * policy.rates.rates[0].period / policy.rates.rates[0].count + 1);
    }
    policy.count_all = (kind & kCountAll) != 0;
    return policy;
}

rc::Gen<Micros> any_move(const Rate& rate, bool back) {
    const Micros apart = rate.period / rate.count;
    const auto slack = between<Micros>(0, kClockSlack);
    const auto forward = rc::gen::weightedOneOf<Micros>(
        {{5, rc::gen::just<Micros>(0)},
         {1, rc::gen::just<Micros>(1)},
         {4, between<Micros>(0, 2 * apart + 2)},
         {3, between<Micros>(0, rate.period / 4)},
         {2, between<Micros>(0, 2 * rate.period)},
         {1, one_of<Micros>({rate.period - 1, rate.period, rate.period + 1, 2 * rate.period})},
         {1, slack},
         {1, between<Micros>(0, 3 * kYear)}});
    if (!back) {
        return forward;
    }
    return rc::gen::weightedOneOf<Micros>(
        {{6, forward},
         {1, rc::gen::map(slack, [](Micros move) { return -move; })},
         {1, one_of<Micros>({-1, -kClockSlack, -kClockSlack - 1})},
         {2, rc::gen::map(between<Micros>(0, 3 * rate.period), [](Micros move) { return -move; })},
         {1, rc::gen::map(between<Micros>(0, 3 * kYear), [](Micros move) { return -move; })}});
}

rc::Gen<std::uint64_t> any_cost(std::uint64_t limit) {
    using Cost = std::uint64_t;
    const Cost most = std::min(limit, kMaxCost - 1);
    return rc::gen::weightedOneOf<Cost>({{10, rc::gen::just<Cost>(1)},
                                         {2, rc::gen::just<Cost>(0)},
                                         {4, between<Cost>(1, most)},
                                         {2, between<Cost>(1, std::min<Cost>(most, 4))},
                                         {1, one_of<Cost>({most, most + 1, kMaxCost})}});
}

Step draw_step(const Policy& policy, unsigned kind) {
    const Rate& rate = policy.rates.rates[*between(0U, policy.rates.size - 1)];
    Step step{};
    step.move = *any_move(rate, (kind & kStepsBack) != 0);
    step.cost = *any_cost(capacity_of(policy, rate));
    if ((kind & kRateChanges) != 0 && *between(0, 5) == 0) {
        step.rates = draw_rates(policy.algorithm, (kind & kSeveralRates) != 0);
    }
    return step;
}

}  // namespace random

rc::Gen<Trace> any_trace(Algorithm algorithm, unsigned kind) {
    using random::between;
    const auto policy = rc::gen::exec([=] { return random::draw_policy(algorithm, kind); });
    return rc::gen::mapcat(policy, [=](const Policy& drawn) {
        const Micros period = drawn.rates.rates[0].period;
        const auto start = rc::gen::weightedOneOf<Micros>({
            {4, between<Micros>(kMidnight, 2 * kMidnight)},
            {2, rc::gen::map(between<Micros>(1, 9), [=](Micros windows) { return windows * period; })},
            {1, between<Micros>(1, kDay)},
            {1, between<Micros>(kTraceEnd - kYear, kTraceEnd)},
        });
        const auto step = rc::gen::exec([=] { return random::draw_step(drawn, kind); });
        const auto steps = rc::gen::container<std::vector<Step>>(step);
        return rc::gen::map(rc::gen::pair(start, steps),
                            [=](const std::pair<Micros, std::vector<Step>>& pair) {
                                return Trace{drawn, pair.first, pair.second};
                            });
    });
}

}  // namespace rate_limit
