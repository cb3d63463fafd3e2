// The check script on a real server: expiry of keys, commands of a call, damaged values, memory of a client.
#include "lua/script.h"

#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "client.h"
#include "lua/call.h"
#include "lua/real.h"
#include "lua/value.h"
#include "test.h"

namespace rate_limit {
namespace {

std::string sha;

struct Answer {
    Micros time = 0;
    std::vector<Decision> decisions;
};

Answer answer_of(const Call& call, const redisReply& reply) {
    if (reply.type != REDIS_REPLY_STRING) {
        fail_msg("the script says %s", reply.str != nullptr ? reply.str : "nothing");
    }
    std::string_view text(reply.str, reply.len);
    Answer answer;
    assert_true(decode_time(&text, &answer.time));
    for (const CallGroup& group : call.groups) {
        for (const CallLimit& limit : group.limits) {
            Decision decision = {};
            if (group.kind == kDecide) {
                assert_true(decode_decision(&text, call.policies[limit.policy].first, &decision));
            }
            answer.decisions.push_back(decision);
        }
    }
    assert_true(text.empty());
    return answer;
}

Answer run(const Call& call) {
    connection().send(call.command(sha));
    return answer_of(call, *connection().take());
}

// A call of one group with one limit.
Call request(const Policy& policy, const StateLayout& layout, const std::string& key,
             std::uint64_t cost = 1) {
    return {{{policy, layout}}, {{kDecide, {{0, key, cost}}}}};
}

Call request(const Policy& policy, const std::string& key, std::uint64_t cost = 1) {
    return request(policy, layout_of(policy), key, cost);
}

void test_a_key_expires_when_it_no_longer_matters(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = policy_of(algorithm, "100r/h");
        const Answer answer = run(request(policy, "a"));
        assert_true(answer.decisions[0].allowed);
        assert_int_equal(integer({"PEXPIRETIME", "a"}), expiry_of(policy, answer.time));
        // A second request extends the expiry of a bucket; that of the others is as after a first request.
        const Micros second = run(request(policy, "a")).time;
        assert_int_equal(integer({"PEXPIRETIME", "a"}), is_bucket(algorithm)
                                                            ? rounded_up(answer.time + 2 * kHour / 100)
                                                            : expiry_of(policy, second));
        connection().call({"FLUSHALL", "SYNC"});
    }
    Policy first = policy_of(Algorithm::kFixedWindow, "100r/h");
    first.align_first = true;
    const Answer answer = run(request(first, "a"));
    assert_int_equal(integer({"PEXPIRETIME", "a"}), rounded_up(answer.time + kHour));
}

void test_a_key_lives_as_long_as_any_rate_or_the_interval_needs_it(void**) {
    const Policy policy = policy_of(Algorithm::kSlidingLog, "100r/s,100r/h");
    Answer answer = run(request(policy, "log"));
    assert_int_equal(integer({"PEXPIRETIME", "log"}), rounded_up(answer.time + kHour));
    const Policy windows = policy_of(Algorithm::kFixedWindow, "100r/s,100r/h");
    answer = run(request(windows, "windows"));
    assert_int_equal(integer({"PEXPIRETIME", "windows"}),
                     rounded_up(answer.time - answer.time % kHour + kHour));
    Policy slow = policy_of(Algorithm::kGcra, "1000r/s");
    slow.min_interval = 5 * kSecond;
    answer = run(request(slow, "interval"));
    assert_int_equal(integer({"PEXPIRETIME", "interval"}), rounded_up(answer.time + 5 * kSecond));
}

// The script takes this server for one before Redis 7.
void test_an_old_server_is_told_how_long_and_not_until_when(void**) {
    std::string text = script_text("ORDER", nullptr);
    const std::string field = "redis.REDIS_VERSION_NUM";
    assert_true(text.find(field) != std::string::npos);
    text.replace(text.find(field), field.size(), "redis.NO_SUCH_FIELD");
    const std::string modern = sha;
    sha = text_of(*connection().call({"SCRIPT", "LOAD", text}));
    for (const char* rate : {"1r/s", "5r/m", "1r/h", "1r/40d"}) {
        for (const Algorithm algorithm : kEveryAlgorithm) {
            const Policy policy = policy_of(algorithm, rate);
            const Answer answer = run(request(policy, "a"));
            // Redis adds the duration to its clock, which may have advanced by no more than until now.
            const long long late = integer({"PEXPIRETIME", "a"}) - expiry_of(policy, answer.time);
            assert_true(late >= 0 && late <= rounded_up(redis_time()) - answer.time / 1000);
            connection().call({"FLUSHALL", "SYNC"});
        }
    }
    sha = modern;
}

void test_what_is_given_back_is_forgotten(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = policy_of(algorithm, "100r/h");
        Call call = request(policy, "a", 3);
        const Micros charged_at = run(call).time;
        assert_int_equal(integer({"EXISTS", "a"}), 1);
        call.groups[0].kind = kUndoRequest;
        call.groups[0].limits[0].charge = {3, charged_at};
        run(call);
        const Answer answer = run(request(policy, "a", 0));
        assert_int_equal(answer.decisions[0].remaining, 100);
        assert_int_equal(integer({"EXISTS", "a"}), 0);
    }
}

// 16 requests of 8 clients: one TIME, one MGET, and one SET for each client.
void test_a_call_asks_no_more_of_redis_than_it_must(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Call call = {{{policy_of(algorithm, "100r/h"), layout_of(policy_of(algorithm, "100r/h"))}}, {}};
        for (int i = 0; i < 16; ++i) {
            call.groups.push_back({kDecide, {{0, "client" + std::to_string(i % 8), 1}}});
        }
        connection().call({"CONFIG", "RESETSTAT"});
        run(call);
        assert_int_equal(calls_of("time"), 1);
        assert_int_equal(calls_of("mget"), 1);
        assert_int_equal(calls_of("set"), 8);
        assert_int_equal(commands_called(), 3 + 3);  // EVALSHA and the commands of this test
        connection().call({"FLUSHALL", "SYNC"});
    }
}

void test_a_rejected_request_writes_nothing(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const char* rates : {"5r/h", "5r/h,50r/d"}) {
            const Policy policy = policy_of(algorithm, rates);
            assert_true(run(request(policy, "a", 5)).decisions[0].allowed);
            const std::string before = text_of(*connection().call({"GET", "a"}));
            connection().call({"CONFIG", "RESETSTAT"});
            assert_false(run(request(policy, "a")).decisions[0].allowed);
            assert_true(run(request(policy, "a", 0)).decisions[0].allowed);
            assert_int_equal(calls_of("set"), 0);
            assert_int_equal(calls_of("del"), 0);
            assert_true(text_of(*connection().call({"GET", "a"})) == before);
            connection().call({"FLUSHALL", "SYNC"});
        }
    }
}

void test_a_value_that_cannot_be_read_is_a_client_never_seen(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const auto& [policy, layout] : forms_of(algorithm)) {
            for (const char* value :
                 {"", "x", "12345", "01234567\xff", "a value that nobody ever wrote like this"}) {
                connection().call({"SET", "a", value});
                const Answer answer = run(request(policy, layout, "a"));
                assert_true(answer.decisions[0].allowed);
                assert_int_equal(answer.decisions[0].remaining, 99);
                assert_true(integer({"PTTL", "a"}) > 0);
            }
        }
    }
}

// A long value has an expiry for the sake of other rates.
void test_no_value_makes_its_key_last_for_longer_than_any_rate_needs_it(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = policy_of(algorithm, "100r/h");
        const Policy other = policy_of(algorithm, "90r/40d");
        const StateLayout layout = layout_of(policy, 4, 200);
        const std::string key = algorithm_name(algorithm);
        assert_true(run(request(other, layout, key, 80)).decisions[0].allowed);
        assert_true(run(request(policy, layout, key)).decisions[0].allowed);
        const long long kept = integer({"PTTL", key});
        assert_true(kept > 3 * kDay / 1000);
        std::string value = text_of(*connection().call({"GET", key}));
        for (const char* end : {"\xff\xff\xff\xff\xff\xff\xff\xff", "\x01\x02\x03\x04\x05\x06\x1f\x80",
                                "\xff\xff\xff\xff\xff\xff\x0f\x01"}) {
            value.replace(0, 8, end, 8);
            connection().call({"SET", key, value});
            assert_true(run(request(policy, layout, key)).decisions[0].allowed);
            const long long longest = is_bucket(algorithm) ? 3 * kMaxPeriod / 1000 + 1 : 2 * kHour / 1000;
            const long long now_kept = integer({"PTTL", key});
            if (now_kept > longest) {
                print_error("%s: %lld days\n", algorithm_name(algorithm), now_kept / (kDay / 1000));
            }
            assert_true(now_kept > 0 && now_kept <= longest);
        }
    }
}

// Random bytes, and real values that are truncated or overwritten.
void test_no_value_makes_the_script_fail(void**) {
    std::mt19937 random(20231113);
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const auto& [policy, layout] : forms_of(algorithm)) {
            const Micros charged_at = run(request(policy, layout, "real", 3)).time;
            const std::string real = text_of(*connection().call({"GET", "real"}));
            connection().call({"DEL", "real"});
            std::vector<Call> calls;
            for (unsigned i = 0; i < 400; ++i) {
                std::string value = i % 2 == 0 ? real.substr(0, random() % (real.size() + 1)) : std::string();
                value.resize(i % 2 == 0 ? real.size() : random() % 60);
                for (unsigned changed = 0; changed < (i % 2 == 0 ? 2 : value.size()); ++changed) {
                    value[random() % value.size()] = static_cast<char>(random());
                }
                connection().send({"SET", "a", value});
                calls.push_back(request(policy, layout, "a", i % 3));
                calls.back().groups[0].kind = i % 5 == 0 ? kUndo : i % 5 == 1 ? kOverdraw : kDecide;
                calls.back().groups[0].limits[0].charge = {3, charged_at};
                connection().send(calls.back().command(sha));
            }
            for (const Call& call : calls) {
                connection().take();
                answer_of(call, *connection().take());
            }
        }
        connection().call({"DEL", "a"});
    }
}

void test_a_key_of_another_type_is_a_client_never_seen(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = policy_of(algorithm, "100r/h");
        connection().call({"DEL", "a"});
        connection().call({"LPUSH", "a", "x"});
        assert_int_equal(run(request(policy, "a")).decisions[0].remaining, 99);
        assert_int_equal(run(request(policy, "a")).decisions[0].remaining, 98);
    }
}

// The largest number of keys, each with the longest decision.
void test_the_largest_call_is_answered(void**) {
    const Policy policy = policy_of(Algorithm::kTokenBucket, "1r/h");
    Call call = {{{policy, layout_of(policy)}}, {}};
    for (int i = 0; i < 1024; ++i) {
        call.groups.push_back({kDecide, {{0, "client" + std::to_string(i), 2}}});
    }
    const Answer answer = run(call);
    assert_int_equal(answer.decisions.size(), 1024);
    assert_int_equal(answer.decisions.back().retry_after, kNever);
}

constexpr int kClients = 1000;

std::string client_key(Algorithm algorithm, int client) {
    return std::string("rate_limit:api:") + algorithm_name(algorithm) + ":{ip:10.0." +
           std::to_string(client / 256) + "." + std::to_string(client % 256) + "}";
}

// The mean of MEMORY USAGE over all clients after `fill`. The memory of the whole server would not do: it
// includes hash tables that grow in steps, and buffers.
template <class Fill>
double bytes_a_client(Algorithm algorithm, Fill fill) {
    connection().call({"FLUSHALL", "SYNC"});
    fill();
    assert_int_equal(integer({"DBSIZE"}), kClients);
    long long bytes = 0;
    for (int client = 0; client < kClients; ++client) {
        bytes += integer({"MEMORY", "USAGE", client_key(algorithm, client)});
    }
    return static_cast<double>(bytes) / kClients;
}

double plain_bytes(Algorithm algorithm) {
    return bytes_a_client(algorithm, [=] {
        for (int client = 0; client < kClients; ++client) {
            connection().call(
                {"SET", client_key(algorithm, client), std::to_string(client % 100), "PX", "3600000"});
        }
    });
}

double script_bytes(const Policy& policy, std::uint64_t cost) {
    return bytes_a_client(policy.algorithm, [=] {
        for (int client = 0; client < kClients;) {
            Call call = {{{policy, layout_of(policy)}}, {}};
            for (int i = 0; i < 500; ++i) {
                call.groups.push_back({kDecide, {{0, client_key(policy.algorithm, client++), cost}}});
            }
            run(call);
        }
    });
}

void test_a_client_costs_little_more_than_a_number(void**) {
    if (program != server_programs()[0]) {
        return;  // Valkey allocates values differently
    }
    std::printf("# bytes a client:  plain  one rate  two rates  min_interval\n");
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const bool log = algorithm == Algorithm::kSlidingLog;
        Policy interval = policy_of(algorithm, "200r/h");
        interval.min_interval = kMinute;
        const double plain = plain_bytes(algorithm);
        const double one = script_bytes(policy_of(algorithm, "200r/h"), log ? 200 : 1);
        const double two = script_bytes(policy_of(algorithm, "200r/h,1000r/d"), log ? 200 : 1);
        const double with_interval = script_bytes(interval, log ? 200 : 1);
        std::printf("# %-16s %6.0f %9.0f %10.0f %13.0f\n", algorithm_name(algorithm), plain, one, two,
                    with_interval);
        // The ten counters of sliding_buckets and the 200 entries of the log need more memory than a number.
        assert_true(one <= plain + (log ? 1200 : algorithm == Algorithm::kSlidingBuckets ? 56 : 40));
    }
    std::fflush(stdout);
    connection().call({"FLUSHALL", "SYNC"});
}

int start(void**) {
    server = std::make_unique<Server>(program);
    sha = text_of(*connection().call({"SCRIPT", "LOAD", script_text("ORDER", nullptr)}));
    return 0;
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_key_expires_when_it_no_longer_matters, forget_all),
        cmocka_unit_test_setup(test_a_key_lives_as_long_as_any_rate_or_the_interval_needs_it, forget_all),
        cmocka_unit_test_setup(test_no_value_makes_its_key_last_for_longer_than_any_rate_needs_it,
                               forget_all),
        cmocka_unit_test_setup(test_an_old_server_is_told_how_long_and_not_until_when, forget_all),
        cmocka_unit_test_setup(test_what_is_given_back_is_forgotten, forget_all),
        cmocka_unit_test_setup(test_a_call_asks_no_more_of_redis_than_it_must, forget_all),
        cmocka_unit_test_setup(test_a_rejected_request_writes_nothing, forget_all),
        cmocka_unit_test_setup(test_a_value_that_cannot_be_read_is_a_client_never_seen, forget_all),
        cmocka_unit_test_setup(test_no_value_makes_the_script_fail, forget_all),
        cmocka_unit_test_setup(test_a_key_of_another_type_is_a_client_never_seen, forget_all),
        cmocka_unit_test_setup(test_the_largest_call_is_answered, forget_all),
        cmocka_unit_test_setup(test_a_client_costs_little_more_than_a_number, forget_all),
    };
    int failed = 0;
    for (const std::string& name : server_programs()) {
        program = name;
        failed += cmocka_run_group_tests(tests, start, stop_server);
    }
    return failed;
}
