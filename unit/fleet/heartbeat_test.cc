// Heartbeats: instances that share a Redis know their number, and each its rank.
#include "fleet/heartbeat.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "fleet_zones.h"
#include "redis/real_server.h"

namespace rate_limit {
namespace {

// A worker that may send the heartbeats of an instance.
struct Worker {
    Worker(Membership* membership, const std::string& path, redis::TestLoop* loop, const Process& as,
           redis::Milliseconds timeout = 1000, const std::string& prefix = "rate_limit:")
        : process(as),
          settings(settings_of(path, timeout)),
          client(redis::Client::make(settings, {}, loop)),
          heartbeat(Heartbeat::make(membership, prefix, client.get(), loop, process)) {
        assert_non_null(heartbeat.get());
    }
    ~Worker() {
        heartbeat->stop();
        client.reset();
    }

    Process process;
    redis::Settings settings;
    std::unique_ptr<redis::Client> client;
    std::unique_ptr<Heartbeat> heartbeat;
};

// An nginx with one worker.
struct Instance {
    Instance(std::uint64_t id, const redis::RealServer& server, redis::TestLoop* loop)
        : membership(id),
          worker(&membership, server.path(), loop, made_up_process(static_cast<std::uint32_t>(id))) {}

    Membership membership;
    Worker worker;
};

bool knows(const Membership& membership, std::uint32_t instances, std::uint32_t rank) {
    const Share share = membership.share();
    return share.instances == instances && share.rank == rank;
}

// Turns the loop until some workers have sent `count` calls altogether, and none is in flight.
bool await_calls(redis::TestLoop* loop, const std::vector<const Worker*>& workers, std::uint64_t count) {
    return loop->run_until([&] {
        std::uint64_t calls = 0;
        bool busy = false;
        for (const Worker* worker : workers) {
            calls += worker->client->counts().calls;
            busy = busy || worker->client->busy();
        }
        return calls >= count && !busy;
    });
}

void test_before_the_first_reply_an_instance_has_the_whole_limit(void**) {
    Membership membership(7);
    assert_int_equal(membership.id(), 7);
    assert_true(knows(membership, 1, 0));
    membership.set_share({1'000'000, 999'999});
    assert_true(knows(membership, 1'000'000, 999'999));
    membership.set_share({1, 0});
    assert_true(knows(membership, 1, 0));
}

void test_one_two_and_three_instances_know_of_each_other(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    Instance first(0x20, server, &loop);
    assert_true(await_calls(&loop, {&first.worker}, 1));
    assert_true(knows(first.membership, 1, 0));
    assert_false(server.command({"ZSCORE", "rate_limit:instances", "0000000000000020"}).empty());
    Instance second(0x30, server, &loop);
    assert_true(await_calls(&loop, {&second.worker}, 1));
    assert_true(knows(second.membership, 2, 1));
    loop.jump(Heartbeat::kEvery);
    assert_true(loop.run_until([&] { return knows(first.membership, 2, 0); }));
    // Ranks follow ids: an instance between two others shifts the rank of the second.
    Instance third(0x28, server, &loop);
    loop.jump(Heartbeat::kEvery);
    assert_true(loop.run_until([&] {
        return knows(first.membership, 3, 0) && knows(third.membership, 3, 1) &&
               knows(second.membership, 3, 2);
    }));
    assert_string_equal(server.command({"ZCARD", "rate_limit:instances"}).c_str(), "3");
    // The set expires five seconds after the last heartbeat.
    const std::string spoken =
        server.command({"EVAL", "return redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]", "1",
                        "rate_limit:instances"});
    const std::string forgotten = server.command({"PEXPIRETIME", "rate_limit:instances"});
    assert_in_range(std::stoll(forgotten) - std::stoll(spoken), 4999, 5001);
}

void test_instances_with_other_prefixes_do_not_count(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    Membership one(1);
    Membership two(2);
    const Worker first(&one, server.path(), &loop, made_up_process(1));
    const Worker second(&two, server.path(), &loop, made_up_process(2), 1000, "other:");
    assert_true(await_calls(&loop, {&first, &second}, 2));
    assert_true(knows(one, 1, 0) && knows(two, 1, 0));
    assert_string_equal(server.command({"ZCARD", "other:instances"}).c_str(), "1");
}

void test_a_rank_is_read_when_the_number_changes_and_now_and_then(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    Instance first(0x20, server, &loop);
    Instance second(0x30, server, &loop);
    assert_true(loop.run_until([&] {
        loop.jump(20);
        return knows(first.membership, 2, 0) && knows(second.membership, 2, 1);
    }));
    // One instance goes and another comes at once. The number is the same, so the others notice later.
    second.worker.heartbeat->end();
    server.command({"ZREM", "rate_limit:instances", "0000000000000020"});
    server.command({"ZREM", "rate_limit:instances", "0000000000000030"});
    Instance third(0x10, server, &loop);
    assert_true(loop.run_until([&] {
        loop.jump(20);
        return knows(first.membership, 2, 1) && knows(third.membership, 2, 0);
    }));
    loop.jump(Heartbeat::kEvery);
    server.command({"CONFIG", "RESETSTAT"});
    const std::uint64_t before = first.worker.client->counts().calls + third.worker.client->counts().calls;
    for (unsigned i = 1; i <= 20; i++) {
        loop.jump(Heartbeat::kEvery);
        assert_true(await_calls(&loop, {&first.worker, &third.worker}, before + 2ULL * i));
    }
    const std::string text = server.command({"INFO", "commandstats"});
    const std::size_t at = text.find("cmdstat_zrange:calls=");
    assert_true(at != std::string::npos);
    assert_in_range(std::stoul(text.substr(at + 21)), 2, 8);  // of 40
}

void test_an_instance_without_a_heartbeat_for_five_seconds_is_removed(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    Instance first(1, server, &loop);
    auto second = std::make_unique<Instance>(2, server, &loop);
    assert_true(loop.run_until([&] {
        loop.jump(20);
        return knows(first.membership, 2, 0);
    }));
    second.reset();
    // Sets the age of the last heartbeat in milliseconds. Redis's own scores show how much older it is at the
    // next heartbeat.
    const auto spoke_at = [&](const char* id) {
        return std::stoll(server.command({"ZSCORE", "rate_limit:instances", id}));
    };
    unsigned kept = 0;
    for (const char* age : {"0", "3000", "4900", "5000", "5100", "7000"}) {
        const std::string then =
            server.command({"EVAL",
                            "local now = redis.call('TIME'); return string.format('%.0f', now[1] * 1000 + "
                            "now[2] / 1000 - ARGV[1])",
                            "0", age});
        server.command({"ZADD", "rate_limit:instances", then, "0000000000000002"});
        const std::uint64_t calls = first.worker.client->counts().calls;
        loop.jump(Heartbeat::kEvery);
        assert_true(await_calls(&loop, {&first.worker}, calls + 1));
        const bool keeps = spoke_at("0000000000000001") - std::stoll(then) < 5000;
        assert_string_equal(server.command({"ZCARD", "rate_limit:instances"}).c_str(), keeps ? "2" : "1");
        kept += keeps ? 1 : 0;
    }
    assert_in_range(kept, 1, 3);
}

// After Redis was down for more than five seconds, the first heartbeat finds no other instance.
void test_a_lower_number_is_believed_the_third_time(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    Instance first(1, server, &loop);
    {
        const Instance second(2, server, &loop);
        assert_true(loop.run_until([&] {
            loop.jump(20);
            return knows(first.membership, 2, 0);
        }));
    }
    // The known number after the next reply, which includes the second instance or not.
    const auto hears = [&](bool there) {
        const std::string now =
            server.command({"EVAL", "return string.format('%.0f', redis.call('TIME')[1] * 1000)", "0"});
        server.command({"ZADD", "rate_limit:instances", now, "0000000000000002"});
        if (!there) {
            server.command({"ZREM", "rate_limit:instances", "0000000000000002"});
        }
        const std::uint64_t calls = first.worker.client->counts().calls;
        loop.jump(Heartbeat::kEvery);
        assert_true(await_calls(&loop, {&first.worker}, calls + 1));
        return first.membership.share().instances;
    };
    assert_int_equal(hears(false), 2);
    assert_int_equal(hears(false), 2);
    assert_int_equal(hears(true), 2);
    assert_int_equal(hears(false), 2);
    assert_int_equal(hears(false), 2);
    assert_int_equal(hears(false), 1);
    assert_int_equal(hears(true), 2);
}

void test_heartbeats_in_the_future_are_removed(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    // A heartbeat far in the future.
    const std::string later = std::to_string((redis::real_microseconds() / 1000 + 2'000'000'000'000) * 2);
    server.command({"ZADD", "rate_limit:instances", later, "0000000000000009"});
    Instance first(1, server, &loop);
    assert_true(await_calls(&loop, {&first.worker}, 1));
    assert_true(knows(first.membership, 1, 0));
    assert_string_equal(server.command({"ZCARD", "rate_limit:instances"}).c_str(), "1");
}

void test_of_several_workers_one_sends_heartbeats_and_another_after_its_end(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    Membership membership(1);
    auto first = std::make_unique<Worker>(&membership, server.path(), &loop, made_up_process(1));
    Worker second(&membership, server.path(), &loop, made_up_process(2));
    for (unsigned i = 1; i <= 4; i++) {
        assert_true(await_calls(&loop, {first.get()}, i));
        loop.jump(Heartbeat::kEvery);
    }
    assert_int_equal(second.client->counts().calls, 0);
    first.reset();
    assert_true(await_calls(&loop, {&second}, 1));
    // A worker that shuts down may still run, but sends no more heartbeats.
    Worker third(&membership, server.path(), &loop, made_up_process(3));
    second.heartbeat->end();
    const std::uint64_t said = second.client->counts().calls;
    assert_true(await_calls(&loop, {&third}, 2));
    assert_int_equal(second.client->counts().calls, said);
    assert_string_equal(server.command({"ZCARD", "rate_limit:instances"}).c_str(), "1");
}

void test_while_redis_is_down_the_last_reply_holds(void**) {
    redis::TestLoop loop;
    redis::RealServer server;
    Instance first(1, server, &loop);
    Instance second(2, server, &loop);
    assert_true(
        loop.run_until([&] { return knows(first.membership, 2, 0) && knows(second.membership, 2, 1); }));
    server.stop();
    for (unsigned i = 0; i < 10; i++) {
        loop.jump(Heartbeat::kEvery);
        loop.run_for(10);
    }
    assert_true(knows(first.membership, 2, 0) && knows(second.membership, 2, 1));
    assert_int_equal(first.membership.back_at(), kForever);
    server.start();
    assert_true(loop.run_until([&] {
        loop.jump(100);
        return server.command({"ZCARD", "rate_limit:instances"}) == "2";
    }));
    assert_true(loop.run_until([&] {
        loop.jump(100);
        return knows(first.membership, 2, 0) && knows(second.membership, 2, 1);
    }));
    assert_true(loop.run_until([&] {
        loop.jump(100);
        return first.membership.back_at() < kForever;
    }));
}

// Replies of a fake server, wrong and right.
void test_a_malformed_reply_is_ignored(void**) {
    redis::TestLoop loop;
    redis::FakeServer server(&loop);
    std::string reply = redis::bulk("5 3");
    server.answer = [&](const redis::Words&) { return reply; };
    Membership membership(1);
    const Worker worker(&membership, server.path(), &loop, made_up_process(1));
    assert_true(loop.run_until([&] { return knows(membership, 5, 3); }));
    for (const char* nonsense : {"",      " ",   "5",   "5 ",           " 5 3",      "5  3",
                                 "5 5",   "5 6", "0 0", "-1 0",         "5 -1",      "5 3 ",
                                 "5 3 1", "x 3", "5 x", "4294967297 3", "1000001 3", "99999999999999999999 3",
                                 "5.0 3", "6,3"}) {
        reply = redis::bulk(nonsense);
        const std::size_t before = server.count("EVAL");
        loop.jump(Heartbeat::kEvery);
        assert_true(loop.run_until([&] { return server.count("EVAL") > before; }));
        loop.run_for(3);
        if (!knows(membership, 5, 3)) {
            fail_msg("\"%s\" was believed", nonsense);
        }
    }
    for (const char* other : {"-ERR no\r\n", ":5\r\n", "$-1\r\n", "*2\r\n:5\r\n:3\r\n", "+6 3\r\n"}) {
        reply = other;
        loop.jump(Heartbeat::kEvery);
        loop.run_for(10);
        assert_true(knows(membership, 5, 3));
    }
    reply = redis::bulk("1000000 999999");
    assert_true(loop.run_until([&] {
        loop.jump(100);
        return knows(membership, 1'000'000, 999'999);
    }));
}

void test_one_call_is_in_flight_at_a_time_and_a_late_reply_is_ignored(void**) {
    redis::TestLoop loop;
    redis::FakeServer server(&loop);
    server.answer = [](const redis::Words&) { return ""; };
    Membership membership(1);
    const Worker worker(&membership, server.path(), &loop, made_up_process(1), 30'000);
    assert_true(loop.run_until([&] { return server.count("EVAL") == 1; }));
    for (unsigned i = 0; i < 5; i++) {
        loop.jump(Heartbeat::kEvery);
        loop.run_for(5);
    }
    assert_int_equal(server.count("EVAL"), 1);
    loop.jump(30'000);
    loop.run_for(10);
    server.say(redis::bulk("9 8"));
    loop.run_for(10);
    assert_true(knows(membership, 1, 0));
    server.answer = [](const redis::Words&) { return redis::bulk("3 2"); };
    assert_true(loop.run_until([&] {
        loop.jump(100);
        return knows(membership, 3, 2);
    }));
}

void test_a_heartbeat_has_the_key_and_the_id(void**) {
    redis::TestLoop loop;
    redis::FakeServer server(&loop);
    server.answer = [](const redis::Words&) { return redis::bulk("1 0"); };
    Membership membership(0xfedcba9876543210);
    const Worker worker(&membership, server.path(), &loop, made_up_process(1), 1000, "here:");
    assert_true(loop.run_until([&] { return server.count("EVAL") == 1; }));
    const auto call = std::find_if(server.commands.begin(), server.commands.end(),
                                   [](const redis::Words& words) { return words[0] == "EVAL"; });
    assert_int_equal(call->size(), 7);
    assert_string_equal((*call)[2].c_str(), "1");
    assert_string_equal((*call)[3].c_str(), "here:instances");
    assert_string_equal((*call)[4].c_str(), "fedcba9876543210");
}

void test_a_heartbeat_may_be_destroyed_while_a_call_is_in_flight(void**) {
    redis::TestLoop loop;
    redis::FakeServer server(&loop);
    server.answer = [](const redis::Words&) { return ""; };
    Membership membership(1);
    auto worker = std::make_unique<Worker>(&membership, server.path(), &loop, made_up_process(1));
    assert_true(loop.run_until([&] { return server.count("EVAL") == 1; }));
    worker.reset();
    assert_true(knows(membership, 1, 0));
    // The same before the first call.
    worker = std::make_unique<Worker>(&membership, server.path(), &loop, made_up_process(2));
    worker.reset();
    loop.run_for(10);
    assert_int_equal(server.count("EVAL"), 1);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_before_the_first_reply_an_instance_has_the_whole_limit),
        cmocka_unit_test(test_one_two_and_three_instances_know_of_each_other),
        cmocka_unit_test(test_instances_with_other_prefixes_do_not_count),
        cmocka_unit_test(test_a_rank_is_read_when_the_number_changes_and_now_and_then),
        cmocka_unit_test(test_an_instance_without_a_heartbeat_for_five_seconds_is_removed),
        cmocka_unit_test(test_a_lower_number_is_believed_the_third_time),
        cmocka_unit_test(test_heartbeats_in_the_future_are_removed),
        cmocka_unit_test(test_of_several_workers_one_sends_heartbeats_and_another_after_its_end),
        cmocka_unit_test(test_while_redis_is_down_the_last_reply_holds),
        cmocka_unit_test(test_a_malformed_reply_is_ignored),
        cmocka_unit_test(test_one_call_is_in_flight_at_a_time_and_a_late_reply_is_ignored),
        cmocka_unit_test(test_a_heartbeat_has_the_key_and_the_id),
        cmocka_unit_test(test_a_heartbeat_may_be_destroyed_while_a_call_is_in_flight),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
