// SyncSenders and a real Redis: each count is charged once, and the counts of other instances come back.
#include "fleet/sync_sender.h"

#include "memory/processes.h"
#include "protocol/redis_value.h"
#include "redis/real_server.h"
#include "sync_senders.h"

namespace rate_limit {
namespace {

constexpr Algorithm kTravelling[] = {
    Algorithm::kTokenBucket, Algorithm::kLeakyBucket,   Algorithm::kGcra,
    Algorithm::kFixedWindow, Algorithm::kSlidingWindow, Algorithm::kSlidingBuckets,
};

const Policy kPolicy = with_debt(policy_of(Algorithm::kSlidingWindow, "1000000r/d"));

std::string key_of(Algorithm algorithm, const std::string& client) {
    return std::string("rate_limit:api:") + algorithm_name(algorithm) + ":{" + client + "}";
}

// A worker of an instance, with its client of Redis.
struct Worker {
    Worker(const InstanceZone& instance, const redis::RealServer& server, redis::TestLoop* on,
           const Process& as, const SyncSender::Options& options = every(10),
           redis::Milliseconds timeout = 2000)
        : loop(on),
          process(as),
          settings(sync_settings(server.path(), timeout)),
          client(redis::Client::make(settings, {}, loop)),
          sync_sender(start(instance, client.get(), loop, process, options)) {}
    ~Worker() {
        sync_sender->stop();
        client.reset();
    }

    redis::TestLoop* loop;
    Process process;
    redis::Settings settings;
    std::unique_ptr<redis::Client> client;
    std::unique_ptr<SyncSender> sync_sender;
};

bool delivered(const InstanceZone& instance, redis::TestLoop* loop) {
    return loop->run_until([&] { return !instance.any(); });
}

// What a client has used, by its state in Redis.
std::uint32_t used_in(const redis::RealServer& server, const Policy& policy, const std::string& client) {
    const StateLayout layout = layout_of(policy);
    std::vector<std::uint64_t> state(words_of(layout));
    decode_value(policy, layout, server.command({"GET", key_of(policy.algorithm, client)}), state.data());
    Check check;
    const Decision decision = check.evaluate(policy, layout, state.data(), nginx_clock() - nginx_ahead, 0);
    return decision.limit - decision.remaining;
}

std::uint64_t calls(const redis::RealServer& server) {
    const std::string text = server.command({"INFO", "commandstats"});
    const std::size_t at = text.find("cmdstat_evalsha:calls=");
    return at == std::string::npos ? 0 : std::stoull(text.substr(at + 22));
}

void test_counts_reach_redis_and_other_instances(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    for (const Algorithm algorithm : kTravelling) {
        const Policy policy = with_debt(policy_of(algorithm, "100r/d"));
        const InstanceZone first(policy);
        const InstanceZone second(policy);
        const Worker one(first, server, &loop, made_up_process(1));
        const Worker two(second, server, &loop, made_up_process(2));
        assert_int_equal(first.admitted("alice", 30), 30);
        assert_int_equal(first.admitted("bob", 2, 4), 2);
        assert_true(delivered(first, &loop));
        assert_int_equal(used_in(server, policy, "alice"), 30);
        assert_int_equal(used_in(server, policy, "bob"), 8);
        assert_int_equal(second.remaining("alice"), 100);  // it has had no reply yet
        assert_int_equal(second.admitted("alice", 5), 5);
        assert_true(delivered(second, &loop));
        assert_int_equal(used_in(server, policy, "alice"), 35);
        assert_int_equal(second.remaining("alice"), 65);
        assert_int_equal(first.admitted("alice"), 1);
        assert_true(delivered(first, &loop));
        assert_int_equal(first.remaining("alice"), 64);
        assert_int_equal(server.command({"PTTL", key_of(algorithm, "alice")}).size() > 3, 1);
        assert_int_equal(first.unsent_counts().overshoot() + second.unsent_counts().overshoot(), 0);
        server.command({"FLUSHALL"});
    }
}

void test_requests_beyond_the_limit_are_charged_and_counted_as_overshoot(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    for (const Algorithm algorithm : kTravelling) {
        const Policy policy = with_debt(policy_of(algorithm, "10r/d"));
        const InstanceZone first(policy);
        const InstanceZone second(policy);
        const Worker one(first, server, &loop, made_up_process(1));
        const Worker two(second, server, &loop, made_up_process(2));
        assert_int_equal(first.admitted("alice", 20), 10);
        assert_true(delivered(first, &loop));
        assert_int_equal(second.admitted("alice", 6), 6);
        assert_true(delivered(second, &loop));
        assert_int_equal(first.unsent_counts().overshoot(), 0);
        assert_int_equal(second.unsent_counts().overshoot(), 6);
        assert_int_equal(first.admitted("alice", 5) + second.admitted("alice", 5), 0);
        server.command({"FLUSHALL"});
    }
}

void test_many_clients_go_in_few_calls(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    const InstanceZone instance(kPolicy, 256);
    const Worker worker(instance, server, &loop, this_process(), every(30));
    constexpr unsigned kClients = 1000;
    for (unsigned i = 0; i < kClients; i++) {
        assert_int_equal(instance.admitted(name_of(i), 1 + i % 7), 1 + i % 7);
    }
    assert_true(delivered(instance, &loop));
    assert_int_equal(calls(server), 5);
    for (unsigned i = 0; i < kClients; i++) {
        assert_int_equal(used_in(server, kPolicy, name_of(i)), 1 + i % 7);
    }
    loop.run_for(100);
    assert_int_equal(calls(server), 5);  // idle clients cost nothing
    assert_string_equal(server.command({"DBSIZE"}).c_str(), "1001");
}

void test_each_client_is_charged_by_its_own_rates(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    Policy policy = with_debt(policy_of(Algorithm::kGcra, "off"));
    policy.burst = 5;
    const StateLayout layout = layout_of(policy, 2, 0);
    const InstanceZone instance(policy, layout, 64);
    const Worker worker(instance, server, &loop, this_process());
    constexpr unsigned kClients = 300;
    std::vector<Policy> policies(kClients, policy);
    for (unsigned i = 0; i < kClients; i++) {
        policies[i].rates = rates_of(std::to_string(i % 100 + 1) + "r/h" + (i % 3 == 0 ? ",50r/d" : ""));
        assert_int_equal(instance.admitted(name_of(i), 9, 1, &policies[i]), 6);
    }
    assert_true(delivered(instance, &loop));
    assert_int_equal(calls(server), 2);
    std::vector<std::uint64_t> state(words_of(layout));
    for (unsigned i = 0; i < kClients; i++) {
        const std::string value = server.command({"GET", key_of(Algorithm::kGcra, name_of(i))});
        assert_true(decode_value(policies[i], layout, value, state.data()));
        Check check;
        assert_int_equal(check.evaluate(policies[i], layout, state.data(), nginx_clock(), 0).remaining, 0);
        assert_int_equal(instance.admitted(name_of(i), 1, 1, &policies[i]), 0);
    }
}

void test_a_long_name_is_sent_as_its_digest(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    const InstanceZone instance(kPolicy);
    const Worker worker(instance, server, &loop, this_process());
    const std::string name(200, 'x');
    instance.admitted(name, 3);
    instance.admitted("}", 2);
    assert_true(delivered(instance, &loop));
    NameRoom room;
    assert_int_equal(used_in(server, kPolicy, std::string(short_name(name, &room))), 3);
    assert_int_equal(used_in(server, kPolicy, std::string(short_name("}", &room))), 2);
}

void test_requests_admitted_by_the_fallback_are_charged_and_the_state_stays(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = policy_of(algorithm, "10r/d");
        const InstanceZone instance(policy);
        const InstanceZone other(policy);
        const Worker worker(instance, server, &loop, made_up_process(1), every(10, Mode::kFallback));
        const Worker another(other, server, &loop, made_up_process(2), every(10, Mode::kFallback));
        assert_int_equal(other.admitted("alice", 5), 5);
        assert_int_equal(instance.admitted("alice", 3), 3);
        assert_true(delivered(other, &loop) && delivered(instance, &loop));
        if (algorithm != Algorithm::kSlidingLog) {
            assert_int_equal(used_in(server, policy, "alice"), 8);
        }
        assert_int_equal(instance.remaining("alice"), 7);
        assert_int_equal(instance.unsent_counts().ahead() / kSecond, 0);
        server.command({"FLUSHALL"});
    }
}

void test_requests_that_no_longer_count_are_not_charged(void**) {
    redis::TestLoop loop;
    redis::RealServer server;
    const Policy policy = policy_of(Algorithm::kSlidingWindow, "10r/s");
    const InstanceZone instance(policy);
    const Worker worker(instance, server, &loop, this_process(), every(10, Mode::kFallback), 100);
    server.stop();
    nginx_loop = &loop;
    assert_int_equal(instance.admitted("alice", 3), 3);
    assert_true(loop.run_until([&] { return unsent_of(instance.zone, "alice").sending == 3; }));
    loop.run_for(2100);
    server.start();
    assert_true(delivered(instance, &loop));
    nginx_loop = nullptr;
    assert_string_equal(server.command({"EXISTS", key_of(Algorithm::kSlidingWindow, "alice")}).c_str(), "0");
}

void test_the_clock_is_that_of_redis(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    for (const Micros ahead : {Micros{0}, 3600 * kSecond, -3600 * kSecond, 40 * kMinute + 123456}) {
        nginx_ahead = ahead;
        const Policy policy = with_debt(policy_of(Algorithm::kFixedWindow, "10r/h"));
        const InstanceZone instance(policy);
        const Worker worker(instance, server, &loop, this_process());
        const Micros asked_at = nginx_clock();
        instance.admitted("first");
        assert_true(delivered(instance, &loop));
        // Redis's clock was read between the call and its reply; the difference cannot be known better.
        const Micros suspect = nginx_clock() - asked_at + kSecond / 1000;
        assert_in_range(instance.unsent_counts().ahead() + ahead + kHour, kHour - suspect, kHour + suspect);
        // From then on the windows of both are the same, and no request is lost.
        assert_int_equal(instance.admitted("alice", 12), 10);
        assert_true(delivered(instance, &loop));
        assert_int_equal(used_in(server, policy, "alice"), 10);
        assert_int_equal(instance.admitted("alice"), 0);
        server.command({"FLUSHALL"});
    }
    nginx_ahead = 0;
}

void test_a_clock_difference_that_may_be_right_stays(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    const InstanceZone instance(kPolicy);
    const Worker worker(instance, server, &loop, this_process());
    nginx_ahead = 5 * kSecond;
    instance.admitted("alice");
    assert_true(delivered(instance, &loop));
    const Micros first = instance.unsent_counts().ahead();
    unsigned changes = 0;
    Micros last = first;
    for (unsigned i = 0; i < 50; i++) {
        const Micros asked_at = nginx_clock();
        instance.admitted("alice");
        assert_true(delivered(instance, &loop));
        changes += instance.unsent_counts().ahead() != last ? 1 : 0;
        last = instance.unsent_counts().ahead();
        const Micros suspect = nginx_clock() - asked_at + kSecond / 1000;
        assert_in_range(last + 5 * kSecond + kHour, kHour - suspect, kHour + suspect);
    }
    // Each reply narrows the possible difference, but most replies allow the known one.
    assert_in_range(changes, 0, 10);
    nginx_ahead = 0;
}

void test_a_server_that_has_forgotten_the_script_gets_it_again(void**) {
    redis::TestLoop loop;
    redis::RealServer server;
    const InstanceZone instance(kPolicy);
    const Worker worker(instance, server, &loop, this_process());
    instance.admitted("alice");
    assert_true(delivered(instance, &loop));
    server.command({"SCRIPT", "FLUSH"});
    instance.admitted("alice");
    assert_true(delivered(instance, &loop));
    assert_int_equal(used_in(server, kPolicy, "alice"), 2);
    // The same with a Redis that has lost its data: it then has only the new counts.
    server.stop();
    server.start();
    instance.admitted("alice", 3);
    assert_true(delivered(instance, &loop));
    assert_int_equal(used_in(server, kPolicy, "alice"), 3);
}

void test_a_reply_that_comes_too_late_does_not_charge_twice(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    const InstanceZone instance(kPolicy);
    const Worker worker(instance, server, &loop, this_process(), every(20), 100);
    instance.admitted("warm");
    assert_true(delivered(instance, &loop));
    for (unsigned round = 1; round <= 3; round++) {
        server.signal(SIGSTOP);
        assert_int_equal(instance.admitted("alice", 7), 7);
        assert_true(loop.run_until([&] { return unsent_of(instance.zone, "alice").sending != 0; }));
        loop.run_for(150);
        // Requests admitted meanwhile are a batch of their own.
        assert_int_equal(instance.admitted("alice", 4), 4);
        loop.run_for(50);
        assert_int_equal(unsent_of(instance.zone, "alice").unsent, 4);
        server.signal(SIGCONT);
        assert_true(delivered(instance, &loop));
        assert_int_equal(used_in(server, kPolicy, "alice"), round * 11);
    }
}

void test_of_two_processes_one_sends_and_the_other_after_its_end(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    const InstanceZone instance(kPolicy);
    const Memory shared(4096);
    auto* stop = shared.as<std::atomic<int>>();
    Child first([&] {
        redis::TestLoop own;
        const Process self = this_process();
        const Worker worker(instance, server, &own, self);
        own.run_until([&] { return stop->load() == 1; }, 60'000);
        return 0;
    });
    assert_int_equal(instance.admitted("alice"), 1);
    for (unsigned i = 0; i < 1000 && instance.any(); i++) {
        usleep(10'000);
    }
    assert_false(instance.any());
    const Worker second(instance, server, &loop, this_process());
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(instance.admitted("alice"), 1);
        loop.run_for(20);
    }
    assert_true(delivered(instance, &loop));
    assert_int_equal(used_in(server, kPolicy, "alice"), 21);
    assert_int_equal(second.client->counts().calls, 0);
    first.kill();
    first.wait();
    assert_int_equal(instance.admitted("alice", 5), 5);
    assert_true(delivered(instance, &loop));
    assert_int_equal(used_in(server, kPolicy, "alice"), 26);
    assert_true(second.client->counts().calls > 0);
}

void test_a_process_that_ends_sends_its_counts_and_leaves_the_rest_to_others(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    const InstanceZone instance(kPolicy);
    Worker first(instance, server, &loop, made_up_process(1), every(3'600'000));
    const Worker second(instance, server, &loop, made_up_process(2), every(3'600'000));
    assert_int_equal(instance.admitted("alice", 5), 5);
    loop.run_for(20);
    assert_int_equal(calls(server), 0);
    first.sync_sender->end();
    first.sync_sender->end();
    assert_int_equal(instance.admitted("bob", 3), 3);
    assert_true(loop.run_until([&] { return unsent_of(instance.zone, "alice").sending == 0; }));
    assert_int_equal(used_in(server, kPolicy, "alice"), 5);
    loop.run_for(20);
    assert_int_equal(calls(server), 1);
    assert_int_equal(used_in(server, kPolicy, "bob"), 0);
    second.sync_sender->end();
    assert_true(delivered(instance, &loop));
    assert_int_equal(used_in(server, kPolicy, "bob"), 3);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_reach_redis_and_other_instances),
        cmocka_unit_test(test_requests_beyond_the_limit_are_charged_and_counted_as_overshoot),
        cmocka_unit_test(test_many_clients_go_in_few_calls),
        cmocka_unit_test(test_each_client_is_charged_by_its_own_rates),
        cmocka_unit_test(test_a_long_name_is_sent_as_its_digest),
        cmocka_unit_test(test_requests_admitted_by_the_fallback_are_charged_and_the_state_stays),
        cmocka_unit_test(test_requests_that_no_longer_count_are_not_charged),
        cmocka_unit_test(test_the_clock_is_that_of_redis),
        cmocka_unit_test(test_a_clock_difference_that_may_be_right_stays),
        cmocka_unit_test(test_a_server_that_has_forgotten_the_script_gets_it_again),
        cmocka_unit_test(test_a_reply_that_comes_too_late_does_not_charge_twice),
        cmocka_unit_test(test_of_two_processes_one_sends_and_the_other_after_its_end),
        cmocka_unit_test(test_a_process_that_ends_sends_its_counts_and_leaves_the_rest_to_others),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
