// decode_value: values become the state of shared memory, and damaged values are harmless.
#include "protocol/redis_value.h"

#include <rapidcheck.h>

#include <random>
#include <string>
#include <vector>

#include "algorithms/rate_slots.h"
#include "client.h"
#include "packed.h"
#include "property.h"
#include "test.h"

namespace rate_limit {
namespace {

using State = std::vector<std::uint64_t>;

constexpr std::uint64_t kUntouched = 0x5555555555555555;

struct Decoded {
    bool read;
    State state;
};

// The value has its own allocation, so that a sanitizer reports reads beyond its end.
Decoded decoded(const Policy& policy, const StateLayout& layout, const std::string& value) {
    const std::vector<char> copy(value.begin(), value.end());
    State state(words_of(layout) + 1, kUntouched);
    const bool read = decode_value(policy, layout, {copy.data(), copy.size()}, state.data());
    assert_true(state.back() == kUntouched);
    state.pop_back();
    return {read, state};
}

State state_of(const Policy& policy, const StateLayout& layout, const std::string& value) {
    const Decoded result = decoded(policy, layout, value);
    assert_true(result.read);
    return result.state;
}

void expect_none(const Policy& policy, const StateLayout& layout, const std::string& value) {
    const Decoded result = decoded(policy, layout, value);
    assert_false(result.read);
    assert_true(result.state == State(words_of(layout)));
}

void expect(const Policy& policy, const StateLayout& layout, const std::string& value,
            const State& expected) {
    assert_true(state_of(policy, layout, value) == expected);
}

// The state of one rate, as lua/ writes it.
std::string slot_bytes(const StateLayout& layout, const std::uint64_t* words, bool wide) {
    if (layout.large && layout.algorithm != Algorithm::kSlidingBuckets) {
        const bool level = is_bucket(layout.algorithm);
        const std::uint64_t third = layout.algorithm == Algorithm::kFixedWindow ? 0 : words[2];
        return Packed()
            .add(words[0], 8)
            .add(0, 1)
            .add(level ? third : words[1], 7)
            .add(level ? words[1] : third, 7)
            .text();
    }
    if (layout.algorithm != Algorithm::kSlidingBuckets) {
        return Packed().add(words[0], 8).add(words[1], wide ? 8 : 4).text();
    }
    std::uint64_t most = 0;
    for (std::uint32_t i = 1; i <= layout.buckets; ++i) {
        most |= layout.large ? words[1 + i] : words[1 + i / 2] >> (i % 2 * 32) & 0xffffffff;
    }
    const std::size_t bytes = most < 256 ? 1 : most < 65536 ? 2 : most >> 32 == 0 ? 4 : 7;
    Packed packed;
    packed.add(words[0], 8).add(layout.buckets, 1).add(words[1], 4);
    for (std::uint32_t i = 1; i <= layout.buckets; ++i) {
        packed.add(layout.large ? words[1 + i] : words[1 + i / 2] >> (i % 2 * 32), bytes);
    }
    return packed.text();
}

bool is_wide(const StateLayout& layout, const State& state) {
    bool wide = false;
    for (std::uint32_t i = 0; i < layout.rates; ++i) {
        wide |=
            layout.algorithm != Algorithm::kSlidingBuckets && !layout.large && state[2 * i + 1] >> 32 != 0;
    }
    return wide;
}

// The value in Redis of a client with this state.
std::string value_bytes(const StateLayout& layout, const State& state) {
    const bool wide = is_wide(layout, state);
    const bool ring = layout.algorithm == Algorithm::kSlidingBuckets;
    if (!has_marks(layout) && !layout.interval) {
        return slot_bytes(layout, state.data(), wide);
    }
    Packed packed;
    const std::uint64_t time = layout.interval ? state[interval_index(layout)] : 0;
    packed.add(has_marks(layout) ? std::uint64_t{kForever} : time, 8);
    packed.add(128 + layout.rates - 1 + (layout.interval ? 8 : 0) + (has_marks(layout) ? 16 : 0) +
                   (wide ? 32 : 0) + (layout.large && !ring ? 64 : 0),
               1);
    if (has_marks(layout) && layout.interval) {
        packed.add(time, 8);
    }
    for (std::uint32_t i = 0; i < layout.rates; ++i) {
        if (has_marks(layout)) {
            packed.add(state[marks_index(layout)] >> (i * 8), 1);
        }
        const std::uint64_t* words = state.data() + i * words_per_rate(layout);
        const bool unused = words[0] == 0 && words[1] == 0;
        const bool sized = ring || layout.large;
        const std::string slot = sized && unused ? "" : slot_bytes(layout, words, wide);
        packed.add(sized ? slot.size() : 0, ring ? 2 : sized ? 1 : 0).add(slot);
    }
    return packed.text();
}

void test_a_short_value_is_the_state_of_its_one_slot(void**) {
    for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra,
                                      Algorithm::kFixedWindow, Algorithm::kSlidingWindow}) {
        const Policy policy = policy_of(algorithm, "10r/m");
        const StateLayout layout = layout_of(policy);
        const std::uint64_t first = 0xfedcba9876543210;
        expect(policy, layout, Packed().add(first, 8).add(0xfedcba98, 4).text(), {first, 0xfedcba98});
        expect(policy, layout, Packed().add(first, 8).add(0xfedcba98, 8).text(), {first, 0xfedcba98});
        const std::string wide = Packed().add(first, 8).add(first, 8).text();
        if (algorithm == Algorithm::kFixedWindow) {
            expect_none(policy, layout, wide);  // above kMaxCounter
        } else {
            expect(policy, layout, wide, {first, first});
        }
    }
}

void test_a_ring_has_counters_of_any_size(void**) {
    Policy policy = policy_of(Algorithm::kSlidingBuckets, "10r/m");
    policy.buckets = 3;
    const StateLayout layout = layout_of(policy);
    const std::uint64_t newest = (std::uint64_t{2} << 52) + 12345;
    for (const std::size_t bytes : {1U, 2U, 4U}) {
        const std::uint64_t most = (std::uint64_t{1} << (8 * bytes)) - 1;
        const std::string value =
            Packed().add(newest, 8).add(3, 1).add(60, 4).add(most, bytes).add(7, bytes).add(8, bytes).text();
        expect(policy, layout, value, {newest, 60 + (most << 32), 7 + (std::uint64_t{8} << 32)});
        expect_none(policy, layout, value + "x");
        expect_none(policy, layout, value.substr(1));
    }
    const std::string counters = "abc";
    expect_none(policy, layout, Packed().add(newest, 8).add(4, 1).add(60, 4).add(counters).text());
    expect_none(policy, layout, Packed().add(newest, 8).add(3, 1).add(60, 4).add(0, 9).text());
    const std::uint64_t outside = std::uint64_t{3} << 52;
    expect_none(policy, layout, Packed().add(outside, 8).add(3, 1).add(60, 4).add(counters).text());
}

void test_a_long_value_has_the_time_of_the_last_request(void**) {
    Policy policy = policy_of(Algorithm::kGcra, "10r/m");
    policy.min_interval = kSecond;
    const StateLayout layout = layout_of(policy);
    const std::string slot = Packed().add(1, 8).add(2, 4).text();
    expect(policy, layout, Packed().add(77, 8).add(0x88, 1).add(slot).text(), {1, 2, 77});
    // After the expiry.
    expect(policy, layout, Packed().add(99, 8).add(0x98, 1).add(77, 8).add(slot).text(), {1, 2, 77});
    expect(policy, layout, Packed().add(99, 8).add(0x90, 1).add(slot).text(), {1, 2, 0});
    expect(policy, layout, slot, {1, 2, 0});
    // A time has at most 53 bits, so that sums do not overflow.
    const State state = state_of(policy, layout, Packed().add(~0ULL, 8).add(0x88, 1).add(slot).text());
    assert_true(state[2] == (std::uint64_t{1} << 53) - 1);
    // This layout has no min_interval.
    policy.min_interval = 0;
    expect(policy, layout_of(policy), Packed().add(77, 8).add(0x88, 1).add(slot).text(), {1, 2});
}

void test_slots_have_their_marks_and_unused_ones_are_left_out(void**) {
    const Policy policy = policy_of(Algorithm::kSlidingWindow, "10r/m,100r/h,1000r/d");
    const StateLayout layout = layout_of(policy);
    const Packed head = Packed().add(99, 8).add(0x92, 1);
    std::string value = Packed(head).add(61, 1).add(1, 8).add(2, 4).add(86, 1).add(3, 8).add(4, 4).text();
    expect(policy, layout, value, {1, 2, 3, 4, 0, 0, 61 + 86 * 256});
    const Packed wide = Packed().add(99, 8).add(0xb2, 1);
    const std::uint64_t high = std::uint64_t{1} << 60;
    value = Packed(wide).add(61, 1).add(1, 8).add(2, 8).add(86, 1).add(3, 8).add(high, 8).text();
    expect(policy, layout, value, {1, 2, 3, high, 0, 0, 61 + 86 * 256});
    expect(policy, layout, head.text(), {0, 0, 0, 0, 0, 0, 0});
    // A truncated slot counts as unused.
    value = Packed(head).add(61, 1).add(1, 8).add(2, 4).add(86, 1).add(3, 8).text();
    expect(policy, layout, value, {1, 2, 0, 0, 0, 0, 61 + 86 * 256});
}

void test_rings_have_their_lengths(void**) {
    Policy policy = policy_of(Algorithm::kSlidingBuckets, "10r/m,100r/h");
    policy.buckets = 2;
    const StateLayout layout = layout_of(policy);
    const Packed head = Packed().add(99, 8).add(0x91, 1);
    const std::string ring = Packed().add(5, 8).add(2, 1).add(60, 4).add(6, 1).add(7, 1).text();
    const State expected = {5, 60 + (std::uint64_t{6} << 32), 7, 0, 0, 0, 61};
    std::string value = Packed(head).add(61, 1).add(ring.size(), 2).add(ring).text();
    expect(policy, layout, value, expected);
    expect(policy, layout, Packed().add(value).add(0, 3).text(), expected);
    // A slot that is not a ring counts as unused, without its mark.
    expect(policy, layout, Packed().add(value).add(86, 1).add(3, 2).add("abc").text(), expected);
    const std::string cut = ring.substr(0, 10);
    expect(policy, layout, Packed().add(value).add(86, 1).add(cut.size(), 2).add(cut).text(), expected);
    // A ring with an invalid index of the newest counter is empty, but keeps its mark.
    const std::string wrong = Packed().add(std::uint64_t{2} << 52, 8).add(ring.substr(8)).text();
    State marked = expected;
    marked[6] += 86 * 256;
    expect(policy, layout, Packed().add(value).add(86, 1).add(wrong.size(), 2).add(wrong).text(), marked);
    expect(policy, layout, Packed().add(value).add(86, 1).add(0, 2).text(), marked);
    // With a truncated length, the whole value is rejected.
    expect_none(policy, layout, Packed().add(value).add(86, 1).add(3, 1).text());
}

// As in Redis, the states that the rates need come first.
void test_a_value_may_be_left_by_another_number_of_rates(void**) {
    const Policy two = policy_of(Algorithm::kSlidingWindow, "10r/m,100r/h");
    const Policy hour = policy_of(Algorithm::kSlidingWindow, "100r/h");
    const Policy day = policy_of(Algorithm::kSlidingWindow, "100r/d,7r/s,10r/m");
    const std::uint64_t minutes = std::uint64_t{60} << 52;
    const std::uint64_t hours = std::uint64_t{3600} << 52;
    const std::string both = value_bytes(layout_of(two), {minutes, 2, hours, 4, 61 + 87 * 256});
    const std::uint64_t mark = rate_slot_mark(hour.rates.rates[0]);
    const std::string marked = value_bytes(layout_of(two), {minutes, 2, hours, 4, 61 + mark * 256});
    expect(hour, layout_of(hour), marked, {hours, 4});
    expect(two, layout_of(two), value_bytes(layout_of(hour), {hours, 4}), {hours, 4, 0, 0, mark});
    // The minute finds its own state, and the two new periods get the other states.
    const State state = state_of(day, layout_of(day), marked);
    assert_true(state == State({hours, 4, minutes, 2, 0, 0, mark + 61 * 256}));
    expect(hour, layout_of(hour, 2, 0), both, {minutes, 2, hours, 4, 61 + 87 * 256, 0});
    // A ring has its period.
    Policy rings = policy_of(Algorithm::kSlidingBuckets, "10r/m,100r/h");
    rings.buckets = 2;
    const std::string ring = Packed().add(5, 8).add(2, 1).add(60, 4).add(6, 1).add(7, 1).text();
    expect(rings, layout_of(rings), ring, {5, 60 + (std::uint64_t{6} << 32), 7, 0, 0, 0, 61});
    // An unused slot has no rate.
    expect(rings, layout_of(rings), Packed().add(1, 8).add(0x88, 1).add(0, 2).text(), State(7));
    // A bucket does not have the period that it was used with.
    const Policy bucket = policy_of(Algorithm::kGcra, "10r/m,100r/h");
    expect(bucket, layout_of(bucket), Packed().add(1, 8).add(2, 4).text(), {1, 2, 0, 0, 0});
}

void test_anything_else_is_no_value(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const char* rates : {"10r/m", "10r/m,100r/h"}) {
            const Policy policy = policy_of(algorithm, rates);
            const StateLayout layout = layout_of(policy);
            for (const std::size_t size : {0U, 1U, 8U, 9U, 12U, 13U, 16U, 22U, 24U}) {
                expect_none(policy, layout, std::string(size, '\0'));
            }
            expect_none(policy, layout, "a value that nobody ever wrote like this");
        }
    }
}

void test_a_log_is_not_taken_over(void**) {
    const Policy policy = policy_of(Algorithm::kSlidingLog, "10r/m");
    expect_none(policy, layout_of(policy), Packed().add(4, 1).add(kMidnight, 8).add(1, 4).text());
    expect_none(policy, layout_of(policy, 2, 20), Packed().add(kMidnight, 8).add(0x90, 1).add(4, 13).text());
}

// A value of any state is read back as the same state.
void a_state_comes_back(const Trace& drawn) {
    if (drawn.policy.algorithm == Algorithm::kSlidingLog) {
        return;
    }
    Policy policy = drawn.policy;
    policy.debt = *rc::gen::arbitrary<bool>();
    const bool roomy = *rc::gen::arbitrary<bool>();
    const StateLayout layout =
        roomy ? layout_of(policy, *random::between<std::uint32_t>(policy.rates.size, kMaxRates), 0)
              : layout_of(policy);
    State state(words_of(layout));
    Micros now = drawn.start;
    for (const Step& step : drawn.steps) {
        now = moved(now, step.move);
        Check check;
        check.evaluate(policy, layout, state.data(), now, step.cost);
        check.impose(state.data());
        State expected = state;
        if (layout.varied) {
            expected[weight_index(layout)] = 0;
        }
        const Decoded result = decoded(policy, layout, value_bytes(layout, state));
        RC_ASSERT(result.state == expected);
    }
}

void test_a_state_comes_back_as_it_was(void**) {
    for_every_algorithm("a state comes back", kStepsBack, a_state_comes_back);
    for_every_algorithm("the same with several rates", kSeveralRates | kIntervals, a_state_comes_back);
}

// A value with some bytes changed, removed or inserted.
std::string mutated(std::string value, std::mt19937* random) {
    const auto any = [=](std::size_t size) { return size == 0 ? 0 : (*random)() % size; };
    switch (any(4)) {
        case 0:
            value.resize(any(value.size() + 1));
            break;
        case 1:
            value.insert(any(value.size() + 1), 1 + any(8), static_cast<char>(any(256)));
            break;
        case 2:
            value.assign(any(64), '\0');
            break;
        default:
            break;
    }
    for (std::size_t changes = any(4) == 0 ? value.size() : 1 + any(3); changes > 0 && !value.empty();
         --changes) {
        value[any(value.size())] = static_cast<char>(any(256));
    }
    return value;
}

// Requests on any state that was read get plausible waits.
void expect_usable(const Policy& policy, const StateLayout& layout, State state, Micros now) {
    for (const std::uint64_t cost : std::initializer_list<std::uint64_t>{0, 1, kMaxCost, 1}) {
        Check check;
        const Decision& decision = check.evaluate(policy, layout, state.data(), now, cost);
        assert_true(decision.remaining <= decision.limit);
        assert_true(decision.retry_after >= kNever && decision.retry_after <= kForever);
        assert_true(decision.reset_after >= 0 && decision.reset_after <= kForever);
        check.impose(state.data());
        now += kSecond;
    }
}

void test_no_bytes_do_any_harm(void**) {
    std::mt19937 random(20261116);
    unsigned read = 0;
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (unsigned form = 0; form < 32; ++form) {
            Policy policy = policy_of(algorithm, (form & 1) != 0 ? "10r/m,100r/h" : "10r/m");
            if ((form & 16) != 0 && algorithm != Algorithm::kSlidingLog) {
                policy.rates.rates[0].count = kMaxCount;
            }
            policy.debt = (form & 2) != 0;
            policy.min_interval = (form & 4) != 0 ? kSecond : 0;
            const StateLayout layout =
                (form & 8) != 0 ? layout_of(policy, kMaxRates, 300) : layout_of(policy);
            State state(words_of(layout));
            Check check;
            check.evaluate(policy, layout, state.data(), kMidnight, 3);
            check.impose(state.data());
            const bool log = algorithm == Algorithm::kSlidingLog;
            const std::string value = log ? std::string(40, 'x') : value_bytes(layout, state);
            for (unsigned i = 0; i < 2000; ++i) {
                const Decoded result = decoded(policy, layout, mutated(value, &random));
                assert_true(result.read || result.state == State(words_of(layout)));
                expect_usable(policy, layout, result.state, kMidnight + kSecond);
                read += result.read ? 1 : 0;
            }
        }
    }
    assert_true(read > 20'000);  // many damaged values can still be read
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_short_value_is_the_state_of_its_one_slot),
        cmocka_unit_test(test_a_ring_has_counters_of_any_size),
        cmocka_unit_test(test_a_long_value_has_the_time_of_the_last_request),
        cmocka_unit_test(test_slots_have_their_marks_and_unused_ones_are_left_out),
        cmocka_unit_test(test_rings_have_their_lengths),
        cmocka_unit_test(test_a_value_may_be_left_by_another_number_of_rates),
        cmocka_unit_test(test_anything_else_is_no_value),
        cmocka_unit_test(test_a_log_is_not_taken_over),
        cmocka_unit_test(test_a_state_comes_back_as_it_was),
        cmocka_unit_test(test_no_bytes_do_any_harm),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
