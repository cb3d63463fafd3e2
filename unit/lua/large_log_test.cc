// A sliding_log of many entries on a real server: the cost of a check, exactness, expiry, and conversion of
// logs that are not rings.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "client.h"
#include "lua/call.h"
#include "lua/real.h"
#include "lua/script.h"
#include "lua/value.h"
#include "test.h"

namespace rate_limit {
namespace {

constexpr long kAlwaysWhole = 1 << 21;  // more than any log has

std::string sha;
std::string whole_sha;  // of a script without rings, as in earlier releases

struct Answer {
    Micros time = 0;
    Decision decision = {};
};

// A call of one group with one limit.
Call request(const Policy& policy, const StateLayout& layout, std::uint64_t cost,
             const std::string& key = "a") {
    return {{{policy, layout}}, {{kDecide, {{0, key, cost}}}}};
}

Answer run(const Call& call, const std::string& script, Connection* by) {
    by->send(call.command(script));
    const Reply reply = by->take();
    if (reply->type != REDIS_REPLY_STRING) {
        fail_msg("the script says %s", reply->str != nullptr ? reply->str : "nothing");
    }
    std::string_view text(reply->str, reply->len);
    Answer answer;
    assert_true(decode_time(&text, &answer.time));
    for (const CallGroup& group : call.groups) {
        assert_true(group.kind != kDecide ||
                    decode_decision(&text, call.policies[0].first, &answer.decision));
    }
    assert_true(text.empty());
    return answer;
}

Answer run(const Policy& policy, std::uint64_t cost, const std::string& script = sha) {
    return run(request(policy, layout_of(policy), cost), script, &connection());
}

Policy log_of(const std::string& rates) { return policy_of(Algorithm::kSlidingLog, rates); }

// The commands of equal calls, and the microseconds of the fastest call.
struct Cost {
    long fastest = 1'000'000;
    long reads = 0;  // the most in one call
    long writes = 0;
};

Cost cost_of(const Call& call, bool allowed) {
    Cost cost;
    for (int i = 0; i < 50; ++i) {
        connection().call({"CONFIG", "RESETSTAT"});
        assert_int_equal(run(call, sha, &connection()).decision.allowed, allowed);
        const std::string usec = "usec=";
        const std::string stat = info("commandstats", "cmdstat_evalsha");
        cost.fastest = std::min(cost.fastest, std::atol(stat.c_str() + stat.find(usec) + usec.size()));
        cost.reads = std::max(cost.reads, calls_of("getrange"));
        cost.writes = std::max(cost.writes, calls_of("setrange"));
        assert_int_equal(calls_of("mget") + calls_of("get") + calls_of("set"), 0);
    }
    return cost;
}

// The client has used `used` of `count`, half of it within the last second, so the entries of the second rate
// begin in the middle of the log.
Cost cost_of_log(std::uint32_t count, std::uint32_t used, std::uint64_t cost, bool allowed) {
    const Policy policy = log_of(std::to_string(count) + "r/d," + std::to_string(count) + "r/s");
    connection().call({"FLUSHALL", "SYNC"});
    const Micros began = run(policy, used / 2).time;
    while (run(policy, 0).time <= began + kSecond) {
        usleep(10'000);
    }
    run(policy, used - used / 2);
    return cost_of(request(policy, layout_of(policy), cost), allowed);
}

void test_a_check_costs_the_same_however_many_entries_there_are(void**) {
    constexpr std::uint32_t kFew = 2000;
    constexpr std::uint32_t kMany = kMaxLogEntries;
    const struct {
        const char* name;
        std::uint32_t left;
        std::uint64_t cost;
        bool allowed;
    } kinds[] = {{"admitted", 100, 1, true}, {"rejected", 0, 1, false}, {"a look", 0, 0, true}};
    for (const auto& kind : kinds) {
        const Cost few = cost_of_log(kFew, kFew - kind.left, kind.cost, kind.allowed);
        const Cost many = cost_of_log(kMany, kMany - kind.left, kind.cost, kind.allowed);
        std::printf("# %s: %ld us and %ld reads of %u entries, %ld us and %ld reads of %u\n", kind.name,
                    few.fastest, few.reads, kFew, many.fastest, many.reads, kMany);
        // The header, and for each of two binary searches at most one run of entries a step.
        assert_true(many.reads <= 1 + 2 * 20);
        assert_true(many.writes <= 2);
        // Reading or writing all entries would take a thousand times as long.
        assert_true(many.fastest <= 10 * few.fastest);
    }
}

void test_a_large_log_is_exact(void**) {
    const Policy policy = log_of("5000r/h");
    const Answer first = run(policy, 4998);
    assert_int_equal(first.decision.remaining, 2);
    assert_int_equal(run(policy, 1).decision.remaining, 1);
    assert_false(run(policy, 2).decision.allowed);
    assert_int_equal(run(policy, 1).decision.remaining, 0);
    const Decision rejected = run(policy, 1).decision;
    assert_false(rejected.allowed);
    assert_true(rejected.retry_after > 0 && rejected.retry_after <= kHour);
    Call undo = request(policy, layout_of(policy), 10);
    undo.groups[0].kind = kUndo;
    undo.groups[0].limits[0].charge = {4998, first.time};
    run(undo, sha, &connection());
    assert_int_equal(run(policy, 0).decision.remaining, 10);
    assert_int_equal(run(policy, 3).decision.remaining, 7);
}

void test_the_key_of_a_large_log_expires_with_its_newest_entry(void**) {
    const Policy policy = log_of("5000r/h");
    Call undo = request(policy, layout_of(policy), 1);
    undo.groups[0].kind = kUndo;
    undo.groups.resize(3, undo.groups[0]);
    for (CallGroup& group : undo.groups) {
        const Micros time = run(policy, 1).time;
        assert_int_equal(integer({"PEXPIRETIME", "a"}), rounded_up(time + kHour));
        group.limits[0].charge = {1, time};
    }
    run(undo, sha, &connection());
    assert_int_equal(integer({"EXISTS", "a"}), 0);
}

// Each client is read and written once in a call, however often it occurs.
void test_a_call_reads_a_large_log_once(void**) {
    const Policy policy = log_of("5000r/h");
    Call call = request(policy, layout_of(policy), 1);
    call.groups.insert(call.groups.end(), 15, call.groups[0]);
    assert_int_equal(run(call, sha, &connection()).decision.remaining, 5000 - 16);
    connection().call({"CONFIG", "RESETSTAT"});
    assert_int_equal(run(call, sha, &connection()).decision.remaining, 5000 - 32);
    assert_int_equal(calls_of("mget") + calls_of("set"), 0);
    assert_int_equal(calls_of("pexpireat"), 1);
    assert_int_equal(calls_of("setrange"), 16 + 1);
}

void test_a_log_that_was_kept_whole_is_taken_over(void**) {
    for (const char* rates : {"5000r/h", "5000r/d", "100r/m,5000r/h"}) {
        connection().call({"FLUSHALL", "SYNC"});
        const Policy policy = log_of(rates);
        run(policy, 90, whole_sha);
        assert_int_equal(run(policy, 0).decision.remaining, run(policy, 0, whole_sha).decision.remaining);
        const std::uint32_t left = run(policy, 0).decision.remaining;
        assert_int_equal(run(policy, 1).decision.remaining, left - 1);
        assert_int_equal(run(policy, 1).decision.remaining, left - 2);
    }
}

// A lowered limit needs no ring any more; a raised one does.
void test_a_log_stays_what_it_is_when_the_count_changes(void**) {
    assert_int_equal(run(log_of("5000r/d"), 60).decision.remaining, 4940);
    assert_int_equal(run(log_of("100r/d"), 10).decision.remaining, 30);
    assert_int_equal(run(log_of("20000r/d"), 10).decision.remaining, 19'920);
    assert_int_equal(run(log_of("5000r/d"), 1).decision.remaining, 4919);
    assert_int_equal(run(log_of("100r/h"), 1).decision.remaining, 18);
}

void test_a_key_of_another_type_is_a_client_never_seen(void**) {
    connection().call({"LPUSH", "a", "x"});
    assert_int_equal(run(log_of("5000r/h"), 1).decision.remaining, 4999);
    assert_int_equal(run(log_of("5000r/h"), 1).decision.remaining, 4998);
}

// A Redis user with only the permissions that earlier releases needed.
void test_a_user_who_may_not_read_parts_has_the_same_limit(void**) {
    connection().call(
        {"ACL", "SETUSER", "plain", "on", ">secret", "~*", "+evalsha", "+mget", "+set", "+del", "+time"});
    const std::unique_ptr<Connection> plain = Connection::open(server->socket());
    plain->call({"AUTH", "plain", "secret"});
    const Policy policy = log_of("5000r/h");
    const Call call = request(policy, layout_of(policy), 1);
    for (std::uint32_t left = 5000; left > 4990;) {
        assert_int_equal(run(call, sha, plain.get()).decision.remaining, --left);
        assert_int_equal(run(call, sha, plain.get()).decision.remaining, --left);
        assert_int_equal(run(call, sha, &connection()).decision.remaining, --left);
    }
}

int start(void**) {
    server = std::make_unique<Server>(program);
    sha = text_of(*connection().call({"SCRIPT", "LOAD", script_text("ORDER", nullptr)}));
    whole_sha = text_of(*connection().call({"SCRIPT", "LOAD", script_text("ORDER", nullptr, kAlwaysWhole)}));
    return 0;
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_check_costs_the_same_however_many_entries_there_are, forget_all),
        cmocka_unit_test_setup(test_a_large_log_is_exact, forget_all),
        cmocka_unit_test_setup(test_the_key_of_a_large_log_expires_with_its_newest_entry, forget_all),
        cmocka_unit_test_setup(test_a_call_reads_a_large_log_once, forget_all),
        cmocka_unit_test_setup(test_a_log_that_was_kept_whole_is_taken_over, forget_all),
        cmocka_unit_test_setup(test_a_log_stays_what_it_is_when_the_count_changes, forget_all),
        cmocka_unit_test_setup(test_a_key_of_another_type_is_a_client_never_seen, forget_all),
        cmocka_unit_test_setup(test_a_user_who_may_not_read_parts_has_the_same_limit, forget_all),
    };
    int failed = 0;
    for (const std::string& name : server_programs()) {
        program = name;
        failed += cmocka_run_group_tests(tests, start, stop_server);
    }
    return failed;
}
