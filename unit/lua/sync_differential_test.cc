// Sync calls charge clients in Redis as core does, and decode_value reads the values. With RL_LONG in the
// environment, five times as many scenarios.
#include <random>

#include "lua/differential.h"

namespace rate_limit {
namespace {

constexpr Kind kKinds[] = {
    {"plain", kImposes, 1},
    {"steps of the clock", kImposes | kStepsBack, 1},
    {"several rates", kImposes | kSeveralRates | kStepsBack, 1},
    {"new lists of rates", kImposes | kRateChanges | kSeveralRates | kStepsBack, 1},
    {"everything", kImposes | kCountAll | kIntervals | kStepsBack | kRateChanges | kSeveralRates, 1},
    {"several clients", kImposes | kCountAll | kIntervals | kStepsBack | kRateChanges | kSeveralRates, 4},
};

void test_redis_charges_as_core_does(void**) { compare_with(server_programs()[0], kKinds); }

void test_a_ring_is_charged_as_core_does(void**) { compare_rings(kKinds); }

void test_valkey_charges_as_core_does(void**) {
    const std::vector<std::string> programs = server_programs();
    assert_int_equal(programs.size(), 2);
    compare_with(programs[1], std::vector<Kind>{kKinds[std::size(kKinds) - 1]});
}

// A value with some bytes changed, removed or inserted.
std::string mutated(std::string value, std::mt19937* random) {
    const auto any = [=](std::size_t size) { return (*random)() % size; };
    if (any(3) == 0) {
        value.resize(any(value.size() + 1));
    } else if (any(3) == 0) {
        value.insert(any(value.size() + 1), 1 + any(20), static_cast<char>(any(256)));
    }
    for (std::size_t changes = any(4); changes > 0 && !value.empty(); --changes) {
        value[any(value.size())] = static_cast<char>(any(256));
    }
    return value;
}

// Policies and layouts for all forms of values.
std::vector<std::pair<Policy, StateLayout>> forms_of(Algorithm algorithm) {
    std::vector<std::pair<Policy, StateLayout>> forms;
    for (const char* rates : {"10r/m", "10r/m,100r/h", "100r/h,5r/s,10r/m"}) {
        Policy policy = policy_of(algorithm, rates);
        policy.buckets = 3;
        for (const Micros interval : {Micros{0}, kHour}) {
            policy.min_interval = interval;
            forms.emplace_back(policy, layout_of(policy));
            forms.emplace_back(policy, layout_of(policy, 5, 0));
        }
    }
    return forms;
}

// Whether a ring has a period that no rate has. Some of these exceed the exact integers of Lua.
bool has_wild_period(const StateLayout& layout, const Words& state) {
    bool wild = false;
    for (std::uint32_t i = 0; layout.algorithm == Algorithm::kSlidingBuckets && i < layout.rates; ++i) {
        wild |= (state[i * words_per_rate(layout) + 1] & 0xffffffff) > kMaxPeriod / kSecond;
    }
    return wild;
}

constexpr Micros kNow = kMidnight + 7 * kSecond;

// The value of a client after a sync call.
std::string value_of(const std::pair<Policy, StateLayout>& form) {
    TimedCall call;
    call.now = kNow;
    call.sequence = 1;
    call.policies = {form};
    call.groups = {{kDecide, {{0, "a", 3}}}};
    server->connection().call({"FLUSHALL"});
    server->connection().call(call.command());
    return text_of(*server->connection().call({"GET", "a"})).substr(8);
}

// A read and a request: core decides both on the decoded state as Redis did on the value.
void compare_taken_over(const Policy& policy, const StateLayout& layout, const std::string& value,
                        std::string_view told) {
    Words state(words_of(layout));
    decode_value(policy, layout, value, state.data());
    const bool wild = has_wild_period(layout, state);
    Micros time = 0;
    assert_true(decode_time(&told, &time));
    for (const std::uint64_t cost : {0U, 1U}) {
        Check check;
        Decision expected = check.evaluate(policy, layout, state.data(), kNow, cost);
        check.charge(state.data());
        expected.excess_milli = expected.allowed ? 0 : expected.excess_milli;
        Decision got = {};
        assert_true(decode_decision(&told, policy, &got));
        if (!(got == expected) && !wild) {
            Content bytes;
            for (const char byte : value) {
                bytes.push_back(static_cast<unsigned char>(byte));
            }
            fail_msg("%s, room for %u:%s\n  core  %s\n  redis %s", algorithm_name(policy.algorithm),
                     layout.rates, show(bytes).c_str(), show(expected).c_str(), show(got).c_str());
        }
    }
}

// The command of src/server replies to a damaged value what the script replies.
void compare_native(const TimedCall& call, const std::string& value, std::string_view told) {
    const auto& [policy, layout] = call.policies[0];
    Words state(words_of(layout));
    decode_value(policy, layout, value, state.data());
    if (has_wild_period(layout, state)) {
        return;
    }
    NativeServer native;
    native.stored()["a"] = {value, kForever};
    const std::vector<std::string> words = call.command();
    const std::string got = native.check({"a", "a"}, words[5], words[6], kNow);
    if (got != told) {
        fail_msg("%s:\n  value  %s\n  script %s\n  native %s", algorithm_name(policy.algorithm),
                 show_bytes(value).c_str(), show_bytes(told).c_str(), show_bytes(got).c_str());
    }
}

// Values that `left` has written are damaged, and then read under `found`.
void compare_mutated(const std::pair<Policy, StateLayout>& left, const std::pair<Policy, StateLayout>& found,
                     std::mt19937* random) {
    const std::string forever("\xff\xff\xff\xff\xff\xff\x0f\0", 8);
    const std::string real = value_of(left);
    TimedCall call;
    call.now = kNow;
    call.policies = {found};
    call.groups = {{kDecide, {{0, "a", 0}}}, {kDecide, {{0, "a", 1}}}};
    std::vector<std::string> values(20);
    for (std::string& value : values) {
        value = mutated(real, random);
        server->connection().send({"SET", "a", forever + value});
        server->connection().send(call.command());
    }
    for (const std::string& value : values) {
        server->connection().take();
        const Reply reply = server->connection().take();
        assert_int_equal(reply->type, REDIS_REPLY_STRING);
        compare_taken_over(found.first, found.second, value, {reply->str, reply->len});
        compare_native(call, value, {reply->str, reply->len});
    }
}

void test_what_redis_does_not_believe_nobody_takes_over(void**) {
    start_server(server_programs()[0]);
    const char* seed = getenv("RL_SEED");
    std::mt19937 random(seed != nullptr ? static_cast<unsigned>(std::atol(seed)) : 20261116);
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const std::vector<std::pair<Policy, StateLayout>> forms = forms_of(algorithm);
        for (std::size_t i = 0; algorithm != Algorithm::kSlidingLog && i < forms.size(); ++i) {
            for (const std::pair<Policy, StateLayout>& found : forms) {
                compare_mutated(forms[i], found, &random);
            }
        }
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    set_parameters("100");
    const CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_redis_charges_as_core_does, stop_server),
        cmocka_unit_test_teardown(test_a_ring_is_charged_as_core_does, stop_server),
        cmocka_unit_test_teardown(test_valkey_charges_as_core_does, stop_server),
        cmocka_unit_test_teardown(test_what_redis_does_not_believe_nobody_takes_over, stop_server),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
