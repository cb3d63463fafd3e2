// The client with a real Redis in each of its states.
#include <hiredis/hiredis.h>

#include "calls.h"
#include "real_server.h"

namespace rate_limit::redis {
namespace {

// Writes its argument, so that it fails in the same states as the script of limits.
constexpr std::string_view kWriter = "redis.call('SET', 'k', ARGV[1]) return ARGV[1]";

Settings settings_of(const RealServer& server, Milliseconds timeout = 20'000) {
    return settings_for(server.path(), timeout);
}

Settings writer_of(const RealServer& server) {
    Settings settings = settings_of(server);
    settings.script = kWriter;
    return settings;
}

const Asked& write(Calls* calls, const std::string& text) {
    return calls->ask({"EVALSHA", sha1_of(kWriter), "0", text});
}

void test_calls_are_answered_in_order_over_one_connection(void**) {
    TestLoop loop;
    const RealServer server;
    const long before = server.info("total_connections_received");
    Calls calls(settings_of(server), &loop);
    for (unsigned i = 0; i < 2000; i++) {
        calls.echo(std::to_string(i));
        if (i % 100 == 0) {
            loop.turn();
        }
    }
    assert_true(calls.await());
    for (unsigned i = 0; i < 2000; i++) {
        assert_string_equal(calls.all()[i].reply.c_str(), std::to_string(i).c_str());
        assert_int_equal(calls.all()[i].position, i);
    }
    assert_int_equal(server.info("total_connections_received") - before, 2);
}

void test_a_flushed_script_is_loaded_again_without_an_error(void**) {
    TestLoop loop;
    const RealServer server;
    Calls calls(settings_of(server), &loop);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(calls.ask_echo("x").error, Error::kNone);
        assert_string_equal(server.command({"SCRIPT", "FLUSH"}).c_str(), "OK");
    }
    for (unsigned i = 0; i < 50; i++) {
        calls.echo(std::to_string(i));
    }
    assert_true(calls.await());
    for (unsigned i = 0; i < 50; i++) {
        assert_string_equal(calls.all()[5 + i].reply.c_str(), std::to_string(i).c_str());
    }
    assert_true(calls.errors(Error::kNoScript) > 4);
    assert_int_equal(loop.lines.size(), 0);
}

// Sends calls until one succeeds. With a short timeout, a busy machine may need several calls.
bool answers(Calls* calls) {
    for (unsigned i = 0; i < 100; i++) {
        if (calls->await_open(false) && calls->ask_echo("x").error == Error::kNone) {
            return true;
        }
    }
    return false;
}

void test_a_stopped_server_opens_the_breaker_until_it_continues(void**) {
    TestLoop loop;
    const RealServer server;
    Settings settings = settings_of(server, 100);
    settings.connect_timeout = 300;
    Calls calls(settings, &loop);
    assert_true(answers(&calls));
    server.signal(SIGSTOP);
    const Asked& stalled = calls.ask_echo("x");
    assert_int_equal(stalled.error, Error::kTimedOut);
    assert_in_range(stalled.took, 95, 300);
    assert_false(calls->available());
    loop.run_for(20);
    server.signal(SIGCONT);
    assert_true(answers(&calls));
    assert_int_equal(loop.said("answers again"), 1);
}

void test_a_server_that_was_stopped_for_long_is_used_again(void**) {
    TestLoop loop;
    const RealServer server;
    Settings settings = settings_of(server, 50);
    settings.connect_timeout = 100;
    Calls calls(settings, &loop);
    assert_true(answers(&calls));
    server.signal(SIGSTOP);
    calls.ask_echo("x");
    loop.run_for(1500);
    assert_false(calls->available());
    server.signal(SIGCONT);
    assert_true(answers(&calls));
}

void test_a_killed_server_refuses_and_a_new_one_is_used(void**) {
    TestLoop loop;
    RealServer server;
    Calls calls(settings_of(server), &loop);
    calls.ask_echo("warm");
    server.stop();
    assert_true(loop.run_until([&] { return loop.attached == 0; }));
    assert_int_equal(calls.ask_echo("x").error, Error::kRefused);
    assert_false(calls->available());
    loop.run_for(300);
    server.start();
    assert_true(calls.await_open(false, 3000));
    assert_int_equal(calls.ask_echo("y").error, Error::kNone);
}

void test_calls_in_flight_to_a_killed_server_are_closed(void**) {
    TestLoop loop;
    RealServer server;
    Calls calls(settings_of(server), &loop);
    calls.ask_echo("warm");
    server.signal(SIGSTOP);
    for (unsigned i = 0; i < 3; i++) {
        calls.echo("x");
    }
    loop.run_for(20);
    server.stop();
    assert_true(calls.await(1000));
    assert_int_equal(calls.errors(Error::kClosed), 3);
}

void test_the_client_reconnects_after_redis_closes_an_idle_connection(void**) {
    TestLoop loop;
    const RealServer server;
    Calls calls(settings_of(server), &loop);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(calls.ask_echo("x").error, Error::kNone);
        server.command({"CLIENT", "KILL", "TYPE", "normal"});
        assert_true(loop.run_until([&] { return loop.attached == 0; }));
        assert_true(calls->available());
    }
    assert_int_equal(loop.lines.size(), 0);
}

void test_out_of_memory(void**) {
    TestLoop loop;
    const RealServer server;
    Calls calls(writer_of(server), &loop);
    assert_int_equal(write(&calls, "x").error, Error::kNone);
    server.command({"CONFIG", "SET", "maxmemory", "1"});
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(write(&calls, "x").error, Error::kOutOfMemory);
    }
    assert_false(calls->available());
    loop.run_for(200);
    assert_false(calls->available());
    server.command({"CONFIG", "SET", "maxmemory", "0"});
    assert_true(calls.await_open(false, 2000));
    assert_int_equal(write(&calls, "x").error, Error::kNone);
}

void test_a_replica_is_read_only_until_it_is_promoted(void**) {
    TestLoop loop;
    const RealServer server;
    Calls calls(writer_of(server), &loop);
    write(&calls, "x");
    server.command({"REPLICAOF", "127.0.0.1", "1"});
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(write(&calls, "x").error, Error::kReadOnly);
    }
    loop.run_for(200);
    assert_false(calls->available());
    server.command({"REPLICAOF", "NO", "ONE"});
    assert_true(calls.await_open(false, 2000));
    assert_int_equal(write(&calls, "x").error, Error::kNone);
}

void test_calls_during_a_long_script_are_busy(void**) {
    TestLoop loop;
    const RealServer server;
    Calls calls(settings_of(server), &loop);
    calls.ask_echo("warm");
    server.command({"CONFIG", "SET", "busy-reply-threshold", "1"});
    redisContext* other = redisConnectUnix(server.path().c_str());
    redisAppendCommand(other, "EVAL %s 0", "while true do end");
    int done = 0;
    while (done == 0) {
        assert_int_equal(redisBufferWrite(other, &done), REDIS_OK);
    }
    assert_true(loop.run_until([&] { return calls.ask_echo("x").error == Error::kBusy; }));
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(calls.ask_echo("x").error, Error::kBusy);
    }
    assert_false(calls->available());
    server.command({"SCRIPT", "KILL"});
    redisFree(other);
    assert_true(calls.await_open(false, 2000));
    assert_int_equal(calls.ask_echo("y").error, Error::kNone);
}

void test_loading_ends_by_itself(void**) {
    TestLoop loop;
    RealServer server({"--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024"});
    server.command({"DEBUG", "POPULATE", "500"});
    server.command({"CONFIG", "SET", "rdb-key-save-delay", "0"});
    Calls calls(settings_of(server), &loop);
    calls.ask_echo("warm");
    redisContext* other = redisConnectUnix(server.path().c_str());
    redisAppendCommand(other, "DEBUG RELOAD");
    int done = 0;
    while (done == 0) {
        assert_int_equal(redisBufferWrite(other, &done), REDIS_OK);
    }
    bool loading = false;
    for (unsigned i = 0; i < 200 && !loading && calls->available(); i++) {
        loading = calls.ask_echo("x").error == Error::kLoading;
        loop.run_for(2);
    }
    assert_true(loading);
    redisFree(other);
    assert_true(calls.await_open(false, 5000));
    assert_true(loop.run_until(
        [&] { return calls->available() && calls.ask_echo("y").error == Error::kNone; }, 10'000));
}

void test_passwords(void**) {
    TestLoop loop;
    const RealServer server({"--requirepass", "secret"});
    Settings settings = settings_of(server);
    Calls without(settings, &loop);
    assert_int_equal(without.ask_echo("x").error, Error::kDenied);
    assert_false(without->available());
    settings.address.password = "wrong";
    Calls wrong(settings, &loop);
    assert_int_equal(wrong.ask_echo("x").error, Error::kDenied);
    settings.address.password = "secret";
    Calls right(settings, &loop);
    assert_int_equal(right.ask_echo("x").error, Error::kNone);
    settings.address.user = "default";
    Calls named(settings, &loop);
    assert_int_equal(named.ask_echo("x").error, Error::kNone);
    assert_int_equal(loop.said("secret"), 0);
    assert_int_equal(loop.said("\"fleet\" unix:" + settings.address.path + ": auth (NOAUTH"), 1);
    assert_int_equal(loop.said("\"fleet\" unix:" + settings.address.path + ": auth (WRONGPASS"), 1);
}

void test_a_password_where_none_is_set_is_denied(void**) {
    TestLoop loop;
    const RealServer server;
    Settings settings = settings_of(server);
    settings.address.password = "secret";
    Calls calls(settings, &loop);
    assert_int_equal(calls.ask_echo("x").error, Error::kDenied);
}

void test_users_may_run_what_their_rules_allow(void**) {
    TestLoop loop;
    const RealServer server;
    server.command({"ACL", "SETUSER", "alice", "on", ">p@ss:w/rd", "~*", "+evalsha", "+script|load", "+set"});
    server.command({"ACL", "SETUSER", "bob", "on", ">pw", "~*", "+evalsha"});
    server.command({"ACL", "SETUSER", "carol", "on", ">pw", "~*", "+evalsha", "+script|load"});
    Settings settings = writer_of(server);
    settings.address.user = "alice";
    settings.address.password = "p@ss:w/rd";
    Calls alice(settings, &loop);
    assert_int_equal(write(&alice, "x").error, Error::kNone);
    settings.address.user = "bob";
    settings.address.password = "pw";
    Calls bob(settings, &loop);
    assert_int_equal(write(&bob, "x").error, Error::kDenied);
    settings.address.user = "carol";
    Calls carol(settings, &loop);
    assert_int_equal(write(&carol, "x").error, Error::kDenied);
}

void test_the_database_is_selected(void**) {
    TestLoop loop;
    const RealServer server;
    Settings settings = writer_of(server);
    settings.address.database = 9;
    Calls calls(settings, &loop);
    assert_int_equal(write(&calls, "nine").error, Error::kNone);
    assert_true(server.command({"INFO", "keyspace"}).find("db9:keys=1") != std::string::npos);
    settings.address.database = 16;
    Calls beyond(settings, &loop);
    assert_int_equal(write(&beyond, "x").error, Error::kOther);
    assert_int_equal(loop.said("DB index is out of range"), 1);
}

Words cluster_options() {
    return {
        "--port", std::to_string(free_port()), "--bind",     "127.0.0.1",      "--cluster-enabled",
        "yes",    "--cluster-config-file",     "nodes.conf", "--cluster-port", std::to_string(free_port())};
}

void test_a_cluster_node_answers_moved(void**) {
    TestLoop loop;
    const Words here = cluster_options();
    const Words there = cluster_options();
    const RealServer first(here);
    const RealServer second(there);
    first.command({"CLUSTER", "ADDSLOTSRANGE", "0", "8191"});
    second.command({"CLUSTER", "ADDSLOTSRANGE", "8192", "16383"});
    introduce(first, there[1], there[9], [&] {
        return first.command({"CLUSTER", "INFO"}).find("cluster_state:ok") != std::string::npos;
    });
    Calls calls(settings_of(first), &loop);
    assert_int_equal(calls.ask({"EVALSHA", sha1_of(kEcho), "1", "foo", "x"}).error, Error::kMoved);
    assert_int_equal(calls.ask({"EVALSHA", sha1_of(kEcho), "1", "hello", "x"}).error, Error::kNone);
    assert_int_equal(loop.said("moved (MOVED 12182 127.0.0.1:" + there[1] + ")"), 1);
}

void test_too_many_clients(void**) {
    TestLoop loop;
    const RealServer server;
    server.command({"CONFIG", "SET", "maxclients", "1"});
    redisContext* other = redisConnectUnix(server.path().c_str());
    freeReplyObject(redisCommand(other, "PING"));
    Calls calls(settings_of(server), &loop);
    const Error error = calls.ask_echo("x").error;
    assert_true(error == Error::kOther || error == Error::kClosed);
    assert_false(calls->available());
    redisFree(other);
    assert_true(calls.await_open(false, 2000));
    assert_int_equal(calls.ask_echo("y").error, Error::kNone);
}

void test_tcp_over_ipv4_and_ipv6(void**) {
    TestLoop loop;
    const std::uint16_t port = free_port();
    const RealServer server({"--port", std::to_string(port), "--bind", "127.0.0.1", "::1"});
    for (const char* host : {"127.0.0.1", "::1"}) {
        Settings settings = settings_of(server);
        settings.address.path.clear();
        settings.address.host = host;
        settings.address.port = port;
        Calls calls(settings, &loop, {host});
        assert_string_equal(calls.ask_echo("x").reply.c_str(), "x");
    }
}

void test_a_host_is_looked_up_again_when_its_address_fails(void**) {
    TestLoop loop;
    const std::uint16_t port = free_port();
    const RealServer server({"--port", std::to_string(port), "--bind", "127.0.0.1", "::1"});
    Settings settings = settings_of(server);
    settings.address.path.clear();
    settings.address.host = "localhost";
    settings.address.port = port;
    for (const std::vector<std::string>& known : {std::vector<std::string>{"127.9.9.9"}, {}}) {
        Calls calls(settings, &loop, known);
        assert_int_equal(calls.ask_echo("x").error, known.empty() ? Error::kUnresolved : Error::kRefused);
        assert_false(calls->available());
        assert_true(calls.await_open(false, 3000));
        assert_int_equal(calls.ask_echo("y").error, Error::kNone);
    }
}

void test_the_next_address_is_tried_when_one_fails(void**) {
    TestLoop loop;
    const std::uint16_t port = free_port();
    const RealServer server({"--port", std::to_string(port), "--bind", "127.0.0.1"});
    Settings settings = settings_of(server);
    settings.address.path.clear();
    settings.address.host = "127.0.0.1";
    settings.address.port = port;
    Calls calls(settings, &loop, {"127.9.9.9", "127.0.0.1", "127.9.9.8"});
    calls.ask_echo("x");
    assert_true(calls.await_open(false, 3000));
    assert_int_equal(calls.ask_echo("y").error, Error::kNone);
}

void test_a_call_of_many_megabytes_arrives_complete(void**) {
    TestLoop loop;
    const RealServer server;
    Calls calls(settings_of(server, 20'000), &loop);
    calls.ask_echo("warm");
    server.signal(SIGSTOP);
    std::vector<std::string> texts;
    for (char letter = 'a'; letter < 'f'; letter++) {
        texts.emplace_back(7'000'000, letter);
        calls.echo(texts.back());
        loop.turn();
    }
    loop.run_for(20);
    server.signal(SIGCONT);
    assert_true(calls.await(20'000));
    for (unsigned i = 0; i < texts.size(); i++) {
        assert_true(calls.all()[1 + i].reply == texts[i]);
    }
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_are_answered_in_order_over_one_connection),
        cmocka_unit_test(test_a_flushed_script_is_loaded_again_without_an_error),
        cmocka_unit_test(test_a_stopped_server_opens_the_breaker_until_it_continues),
        cmocka_unit_test(test_a_server_that_was_stopped_for_long_is_used_again),
        cmocka_unit_test(test_a_killed_server_refuses_and_a_new_one_is_used),
        cmocka_unit_test(test_calls_in_flight_to_a_killed_server_are_closed),
        cmocka_unit_test(test_the_client_reconnects_after_redis_closes_an_idle_connection),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_a_replica_is_read_only_until_it_is_promoted),
        cmocka_unit_test(test_calls_during_a_long_script_are_busy),
        cmocka_unit_test(test_loading_ends_by_itself),
        cmocka_unit_test(test_passwords),
        cmocka_unit_test(test_a_password_where_none_is_set_is_denied),
        cmocka_unit_test(test_users_may_run_what_their_rules_allow),
        cmocka_unit_test(test_the_database_is_selected),
        cmocka_unit_test(test_a_cluster_node_answers_moved),
        cmocka_unit_test(test_too_many_clients),
        cmocka_unit_test(test_tcp_over_ipv4_and_ipv6),
        cmocka_unit_test(test_a_host_is_looked_up_again_when_its_address_fails),
        cmocka_unit_test(test_the_next_address_is_tried_when_one_fails),
        cmocka_unit_test(test_a_call_of_many_megabytes_arrives_complete),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
