// The sync script on a real server: it charges each call once, replies with each client's value, and sets the
// expiry of keys.
#include <random>
#include <string>
#include <vector>

#include "client.h"
#include "lua/call.h"
#include "lua/real.h"
#include "lua/script.h"
#include "protocol/redis_value.h"
#include "test.h"

namespace rate_limit {
namespace {

std::string sha;
std::string main_sha;
std::uint64_t last_sequence = 0;

struct Told {
    std::uint64_t overshoot;
    std::string value;
};

struct Answer {
    Micros time = 0;
    std::vector<Told> clients;
};

Policy with_debt(Algorithm algorithm, std::string_view rates) {
    Policy policy = policy_of(algorithm, rates);
    policy.debt = true;
    return policy;
}

// A call with one client.
Call charge(const Policy& policy, const StateLayout& layout, const std::string& key, std::uint64_t cost) {
    return {{{policy, layout}}, {{kDecide, {{0, key, cost}}}}};
}

Call charge(const Policy& policy, const std::string& key, std::uint64_t cost) {
    return charge(policy, layout_of(policy), key, cost);
}

Answer answer_of(const Call& call, const redisReply& reply) {
    if (reply.type != REDIS_REPLY_STRING) {
        fail_msg("the script says %s", reply.str != nullptr ? reply.str : "nothing");
    }
    std::string_view text(reply.str, reply.len);
    Answer answer;
    assert_true(decode_time(&text, &answer.time));
    for (std::size_t i = 0; i < call.groups[0].limits.size(); ++i) {
        std::uint64_t overshoot = 0;
        std::string_view value;
        assert_true(decode_entry(&text, &overshoot, &value));
        answer.clients.push_back({overshoot, std::string(value)});
    }
    assert_true(text.empty());
    return answer;
}

Answer run(const Call& call, const std::string& sequence, const std::string& guard = "guard") {
    connection().send(call.sync_command(sha, guard, sequence));
    return answer_of(call, *connection().take());
}

// A call with a new sequence number.
Answer run(const Call& call) { return run(call, std::to_string(++last_sequence)); }

// The decision of the check script for a request.
Decision request(const Policy& policy, const StateLayout& layout, const std::string& key,
                 std::uint64_t cost) {
    const Reply reply = connection().call(charge(policy, layout, key, cost).command(main_sha));
    std::string_view text(reply->str, reply->len);
    Micros time = 0;
    Decision decision = {};
    assert_true(decode_time(&text, &time) && decode_decision(&text, policy, &decision));
    return decision;
}

std::uint64_t remaining(const Policy& policy, const std::string& key) {
    return request(policy, layout_of(policy), key, 0).remaining;
}

std::string get(const std::string& key) {
    const Reply reply = connection().call({"GET", key});
    return reply->type == REDIS_REPLY_STRING ? text_of(*reply) : "";
}

void test_what_was_admitted_elsewhere_counts_for_requests(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = with_debt(algorithm, "100r/d");
        run(charge(policy, "a", 30));
        assert_int_equal(remaining(policy, "a"), 70);
        run(charge(policy, "a", 69));
        assert_true(request(policy, layout_of(policy), "a", 1).allowed);
        run(charge(policy, "a", 50));
        assert_false(request(policy, layout_of(policy), "a", 1).allowed);
        forget_all(nullptr);
    }
}

// Charges beyond the limit count up to one more quota. Until they have drained, no request fits and the key
// stays.
void test_a_level_owes_one_quota_at_most(void**) {
    for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra}) {
        Policy policy = with_debt(algorithm, "100r/h");
        Answer answer = run(charge(policy, "a", 150));
        assert_int_equal(integer({"PEXPIRETIME", "a"}), rounded_up(answer.time + 150 * kHour / 100));
        answer = run(charge(policy, "a", 1'000'000));
        assert_int_equal(integer({"PEXPIRETIME", "a"}), rounded_up(answer.time + 2 * kHour));
        const Decision refused = request(policy, layout_of(policy), "a", 1);
        assert_true(refused.retry_after > 100 * kHour / 100 && refused.retry_after <= 101 * kHour / 100);
        policy.debt = false;
        answer = run(charge(policy, "b", 150));
        assert_int_equal(integer({"PEXPIRETIME", "b"}), rounded_up(answer.time + kHour));
        forget_all(nullptr);
    }
}

void test_a_call_that_comes_again_only_looks(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = with_debt(algorithm, "10r/d");
        const Call call = charge(policy, "a", 4);
        const struct {
            const char* sequence;
            std::uint64_t remaining;
            std::uint32_t overshoot;
        } rows[] = {
            {"7", 6, 0},  {"7", 6, 0},  {"6", 6, 0}, {"8", 2, 0},  {"8", 2, 0},
            {"10", 0, 2}, {"10", 0, 0}, {"9", 0, 0}, {"11", 0, 4},
        };
        for (const auto& row : rows) {
            const Answer answer = run(call, row.sequence);
            assert_int_equal(answer.clients[0].overshoot, row.overshoot);
            assert_int_equal(remaining(policy, "a"), row.remaining);
            assert_true(algorithm == Algorithm::kSlidingLog || answer.clients[0].value == get("a"));
        }
        assert_string_equal(get("guard").c_str(), "11");
        forget_all(nullptr);
    }
}

void test_a_number_may_be_as_large_as_any(void**) {
    const Policy policy = with_debt(Algorithm::kFixedWindow, "100r/d");
    const Call call = charge(policy, "a", 1);
    const struct {
        const char* sequence;
        std::uint64_t remaining;
    } rows[] = {{"9007199254740992", 99},     {"9007199254740993", 98},
                {"9007199254740992", 98},     {"18446744073709551614", 97},
                {"18446744073709551615", 96}, {"18446744073709551615", 96},
                {"18446744073709551614", 96}, {"9", 96}};
    for (const auto& row : rows) {
        run(call, row.sequence);
        assert_int_equal(remaining(policy, "a"), row.remaining);
    }
}

void test_senders_do_not_guard_against_each_other(void**) {
    const Policy policy = with_debt(Algorithm::kFixedWindow, "100r/d");
    run(charge(policy, "a", 1), "5", "one");
    run(charge(policy, "a", 1), "5", "other");
    assert_int_equal(remaining(policy, "a"), 98);
    // A guard that is not a number is ignored.
    for (const char* value : {"", "x", "-7", "99x", "0x99", "1e9", " 99"}) {
        connection().call({"SET", "one", value});
        run(charge(policy, "b", 1), "6", "one");
        assert_int_equal(remaining(policy, "b"), 99);
        assert_string_equal(get("one").c_str(), "6");
        connection().call({"DEL", "b"});
    }
    connection().call({"DEL", "one"});
    connection().call({"LPUSH", "one", "99"});
    run(charge(policy, "b", 1), "6", "one");
    assert_int_equal(remaining(policy, "b"), 99);
    assert_string_equal(get("one").c_str(), "6");
}

void test_the_guard_lasts_for_a_day_after_the_last_call(void**) {
    const Policy policy = with_debt(Algorithm::kGcra, "100r/h");
    for (const char* sequence : {"1", "2"}) {
        const Answer answer = run(charge(policy, "a", 1), sequence);
        assert_int_equal(integer({"PEXPIRETIME", "guard"}), rounded_up(answer.time + kDay));
        connection().call({"PEXPIRE", "guard", "1000000"});
    }
    // A call that only reads does not change the guard.
    connection().call({"CONFIG", "RESETSTAT"});
    run(charge(policy, "a", 1), "2");
    assert_int_equal(calls_of("set"), 0);
    assert_true(integer({"PTTL", "guard"}) <= 1000000);
}

// A guard of a single client: there are as many guards as clients.
void test_the_guard_of_one_client_lasts_as_long_as_its_key_matters(void**) {
    const struct {
        const char* rate;
        Micros lasts;
    } cases[] = {{"10r/s", kMinute}, {"100r/h", 2 * kHour}, {"1r/366d", kDay}};
    for (const auto& each : cases) {
        const Policy policy = with_debt(Algorithm::kTokenBucket, each.rate);
        const std::uint32_t count = policy.rates.rates[0].count;
        const Answer answer = run(charge(policy, "a:{x}", 2 * count), "1", "g:{x}");
        assert_int_equal(integer({"PEXPIRETIME", "g:{x}"}), rounded_up(answer.time + each.lasts));
        forget_all(nullptr);
    }
    // The guard of a call that charges nothing expires soon.
    const Policy policy = with_debt(Algorithm::kTokenBucket, "100r/h");
    const Answer answer = run(charge(policy, "a:{x}", 0), "1", "g:{x}");
    assert_int_equal(integer({"PEXPIRETIME", "g:{x}"}), rounded_up(answer.time + kMinute));
}

void test_what_did_not_fit_is_told_once(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = with_debt(algorithm, "10r/d");
        const struct {
            std::uint64_t cost;
            std::uint32_t overshoot;
        } rows[] = {{4, 0}, {0, 0}, {6, 0}, {0, 0}, {3, 3}, {0, 0}, {2, 2}, {4'000'000'000, 4'000'000'000}};
        for (const auto& row : rows) {
            assert_int_equal(run(charge(policy, "a", row.cost)).clients[0].overshoot, row.overshoot);
        }
        assert_int_equal(run(charge(policy, "b", 17)).clients[0].overshoot, 7);
        forget_all(nullptr);
    }
    // The rate with the largest overshoot counts.
    const Policy several = with_debt(Algorithm::kSlidingBuckets, "10r/h,6r/d,8r/w");
    assert_int_equal(run(charge(several, "a", 7)).clients[0].overshoot, 1);
    assert_int_equal(run(charge(several, "a", 2)).clients[0].overshoot, 2);
    // A violation of min_interval is no overshoot.
    Policy interval = with_debt(Algorithm::kFixedWindow, "10r/d");
    interval.min_interval = kHour;
    assert_int_equal(run(charge(interval, "b", 3)).clients[0].overshoot, 0);
    assert_int_equal(run(charge(interval, "b", 3)).clients[0].overshoot, 0);
}

void test_a_client_has_its_value_told_as_it_is(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const auto& [plain, layout] : forms_of(algorithm)) {
            Policy policy = plain;
            policy.debt = true;
            assert_string_equal(run(charge(policy, layout, "a", 0)).clients[0].value.c_str(), "");
            assert_int_equal(integer({"EXISTS", "a"}), 0);
            for (const std::uint64_t cost : {3U, 0U, 300U, 70'000U, 0U}) {
                const std::string value = run(charge(policy, layout, "a", cost)).clients[0].value;
                if (algorithm == Algorithm::kSlidingLog) {
                    assert_string_equal(value.c_str(), "");
                    continue;
                }
                assert_true(!value.empty() && value == get("a"));
                std::vector<std::uint64_t> state(words_of(layout));
                assert_true(decode_value(policy, layout, value, state.data()));
            }
            connection().call({"DEL", "a"});
        }
    }
}

void test_a_key_expires_when_it_no_longer_matters(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = with_debt(algorithm, "100r/h");
        const Micros first = run(charge(policy, "a", 1)).time;
        assert_int_equal(integer({"PEXPIRETIME", "a"}), expiry_of(policy, first));
        const Micros second = run(charge(policy, "a", 1)).time;
        assert_int_equal(integer({"PEXPIRETIME", "a"}), is_bucket(algorithm)
                                                            ? rounded_up(first + 2 * kHour / 100)
                                                            : expiry_of(policy, second));
        forget_all(nullptr);
    }
}

// A key expires with its last window, even if its expiry was later before; with a min_interval that is longer
// than the window, after the interval.
void test_a_key_ends_with_its_window_whatever_it_held_before(void**) {
    for (const Algorithm algorithm : {Algorithm::kFixedWindow, Algorithm::kSlidingWindow}) {
        const Policy policy = with_debt(algorithm, "100r/m");
        Policy interval = policy;
        interval.min_interval = kHour;
        Answer answer = run(charge(interval, "a", 1));
        assert_int_equal(integer({"PEXPIRETIME", "a"}), rounded_up(answer.time + kHour));
        answer = run(charge(policy, "a", 1));
        assert_int_equal(integer({"PEXPIRETIME", "a"}), expiry_of(policy, answer.time));
        answer = run(charge(interval, "a", 1));
        assert_int_equal(integer({"PEXPIRETIME", "a"}), rounded_up(answer.time + kHour));
        forget_all(nullptr);
    }
}

// The script does not set an equal expiry again, because this is slow in Redis. So an expiry that the test
// changes stays.
void test_a_key_that_ends_with_the_same_window_keeps_its_expiry(void**) {
    for (const Algorithm algorithm : {Algorithm::kFixedWindow, Algorithm::kSlidingWindow}) {
        const Policy policy = with_debt(algorithm, "100r/d");
        run(charge(policy, "a", 1));
        const long long changed = integer({"PEXPIRETIME", "a"}) + 5000;
        connection().call({"PEXPIREAT", "a", std::to_string(changed)});
        run(charge(policy, "a", 2));
        assert_int_equal(integer({"PEXPIRETIME", "a"}), changed);
        // With another period the window has another end.
        const Policy hour = with_debt(algorithm, "100r/h");
        const Answer answer = run(charge(hour, "a", 3));
        assert_int_equal(integer({"PEXPIRETIME", "a"}), expiry_of(hour, answer.time));
        assert_int_equal(request(hour, layout_of(hour), "a", 0).remaining, 94);
        forget_all(nullptr);
    }
}

// The script takes this server for one before Redis 7.
void test_an_old_server_is_told_how_long_and_not_until_when(void**) {
    std::string text = script_text("ORDER.sync", nullptr);
    const std::string field = "redis.REDIS_VERSION_NUM";
    assert_true(text.find(field) != std::string::npos);
    text.replace(text.find(field), field.size(), "redis.NO_SUCH_FIELD");
    const std::string modern = sha;
    sha = text_of(*connection().call({"SCRIPT", "LOAD", text}));
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = with_debt(algorithm, "5r/h");
        const Answer answer = run(charge(policy, "a", 1));
        // Redis adds the duration to its clock, which may have advanced by no more than until now.
        const long long most = rounded_up(redis_time()) - answer.time / 1000;
        const long long late = integer({"PEXPIRETIME", "a"}) - expiry_of(policy, answer.time);
        assert_true(late >= 0 && late <= most);
        const long long guarded = integer({"PEXPIRETIME", "guard"}) - rounded_up(answer.time + kDay);
        assert_true(guarded >= 0 && guarded <= most);
        forget_all(nullptr);
    }
    sha = modern;
}

// Eight clients, two of which are only read: one TIME, one MGET, and one SET for each charged client.
void test_a_call_asks_no_more_of_redis_than_it_must(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = with_debt(algorithm, "100r/h");
        Call call = {{{policy, layout_of(policy)}}, {{kDecide, {}}}};
        for (std::uint32_t i = 0; i < 8; ++i) {
            call.groups[0].limits.push_back({0, "client" + std::to_string(i), i < 6 ? i + 1 : 0});
        }
        for (const long sets : {7L, 0L}) {
            connection().call({"CONFIG", "RESETSTAT"});
            run(call, "1");
            assert_int_equal(calls_of("time"), 1);
            assert_int_equal(calls_of("mget"), 1);
            assert_int_equal(calls_of("set"), sets);
            // EVALSHA and the commands of this test.
            assert_int_equal(commands_called(), (sets != 0 ? 3 : 2) + 3);
        }
        forget_all(nullptr);
    }
}

// A malformed call changes nothing, even if its first entries are correct.
void test_all_is_charged_or_nothing(void**) {
    const Policy policy = with_debt(Algorithm::kSlidingWindow, "100r/h");
    Call call = {{{policy, layout_of(policy)}}, {{kDecide, {{0, "a", 1}, {0, "b", 1}}}}};
    const std::vector<std::string> good = call.sync_command(sha, "guard", "1");
    std::vector<std::vector<std::string>> bad(6, good);
    bad[0][7].pop_back();
    bad[1][7] += "x";
    bad[2][7][kLargeLimitSize] = 1;  // a policy that the call does not have
    bad[3][6].resize(40);
    bad[4].pop_back();
    bad[5][8] = "x";
    for (const std::vector<std::string>& command : bad) {
        connection().send(command);
        assert_int_equal(connection().take()->type, REDIS_REPLY_ERROR);
        assert_int_equal(integer({"DBSIZE"}), 0);
    }
    connection().call(good);
    assert_int_equal(integer({"DBSIZE"}), 3);
}

void test_a_key_of_another_type_is_a_client_never_seen(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = with_debt(algorithm, "100r/h");
        connection().call({"LPUSH", "a", "x"});
        assert_string_equal(run(charge(policy, "a", 0)).clients[0].value.c_str(), "");
        run(charge(policy, "a", 1));
        assert_int_equal(remaining(policy, "a"), 99);
        connection().call({"DEL", "a"});
    }
}

// Random bytes, and real values that are truncated or overwritten.
void test_no_value_makes_the_script_fail(void**) {
    std::mt19937 random(20261116);
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const auto& [policy, layout] : forms_of(algorithm)) {
            run(charge(policy, layout, "real", 3));
            const std::string real = get("real");
            std::vector<Call> calls;
            for (unsigned i = 0; i < 100; ++i) {
                std::string value = i % 2 == 0 ? real.substr(0, random() % (real.size() + 1)) : std::string();
                value.resize(i % 2 == 0 ? real.size() : random() % 60);
                for (unsigned changed = 0; changed < (i % 2 == 0 ? 2 : value.size()); ++changed) {
                    value[random() % value.size()] = static_cast<char>(random());
                }
                connection().send({"SET", "a", value});
                calls.push_back(charge(policy, layout, "a", i % 3));
                connection().send(calls.back().sync_command(sha, "guard", std::to_string(++last_sequence)));
            }
            for (const Call& call : calls) {
                connection().take();
                answer_of(call, *connection().take());
            }
        }
    }
    const Policy policy = with_debt(Algorithm::kGcra, "100r/h");
    connection().call({"SET", "a", std::string(70'000, 'x')});
    assert_string_equal(run(charge(policy, "a", 0)).clients[0].value.c_str(), "");
}

// More clients than a SyncSender sends in a call, with long values.
void test_a_large_call_is_answered(void**) {
    constexpr std::size_t kClients = 1024;
    Policy policy = with_debt(Algorithm::kSlidingBuckets, "100r/h,1000r/d,10000r/w");
    policy.buckets = kMaxBuckets;
    Call call = {{{policy, layout_of(policy)}}, {{kDecide, {}}}};
    for (std::size_t i = 0; i < kClients; ++i) {
        call.groups[0].limits.push_back({0, "client" + std::to_string(i), 70'000});
    }
    const Answer answer = run(call);
    assert_int_equal(answer.clients.size(), kClients);
    assert_true(answer.clients.back().value == get("client" + std::to_string(kClients - 1)));
}

int start(void**) {
    server = std::make_unique<Server>(program);
    sha = text_of(*connection().call({"SCRIPT", "LOAD", script_text("ORDER.sync", nullptr)}));
    main_sha = text_of(*connection().call({"SCRIPT", "LOAD", script_text("ORDER", nullptr)}));
    return 0;
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_what_was_admitted_elsewhere_counts_for_requests, forget_all),
        cmocka_unit_test_setup(test_a_level_owes_one_quota_at_most, forget_all),
        cmocka_unit_test_setup(test_a_call_that_comes_again_only_looks, forget_all),
        cmocka_unit_test_setup(test_a_number_may_be_as_large_as_any, forget_all),
        cmocka_unit_test_setup(test_senders_do_not_guard_against_each_other, forget_all),
        cmocka_unit_test_setup(test_the_guard_lasts_for_a_day_after_the_last_call, forget_all),
        cmocka_unit_test_setup(test_the_guard_of_one_client_lasts_as_long_as_its_key_matters, forget_all),
        cmocka_unit_test_setup(test_what_did_not_fit_is_told_once, forget_all),
        cmocka_unit_test_setup(test_a_client_has_its_value_told_as_it_is, forget_all),
        cmocka_unit_test_setup(test_a_key_expires_when_it_no_longer_matters, forget_all),
        cmocka_unit_test_setup(test_a_key_ends_with_its_window_whatever_it_held_before, forget_all),
        cmocka_unit_test_setup(test_a_key_that_ends_with_the_same_window_keeps_its_expiry, forget_all),
        cmocka_unit_test_setup(test_an_old_server_is_told_how_long_and_not_until_when, forget_all),
        cmocka_unit_test_setup(test_a_call_asks_no_more_of_redis_than_it_must, forget_all),
        cmocka_unit_test_setup(test_all_is_charged_or_nothing, forget_all),
        cmocka_unit_test_setup(test_a_key_of_another_type_is_a_client_never_seen, forget_all),
        cmocka_unit_test_setup(test_no_value_makes_the_script_fail, forget_all),
        cmocka_unit_test_setup(test_a_large_call_is_answered, forget_all),
    };
    int failed = 0;
    for (const std::string& name : server_programs()) {
        program = name;
        failed += cmocka_run_group_tests(tests, start, stop_server);
    }
    return failed;
}
