// Outages: when calls start to fail at once, and when they are sent again.

#include "calls.h"
#include "slow_server.h"

namespace rate_limit::redis {
namespace {

void test_a_refused_connection_fails_all_calls_at_once_and_opens_the_breaker(void**) {
    TestLoop loop;
    Settings settings = settings_for("");
    settings.address.host = "127.0.0.1";
    settings.address.port = 1;
    Calls calls(settings, &loop, {"127.0.0.1"});
    for (unsigned i = 0; i < 3; i++) {
        calls.echo("x");
    }
    assert_true(calls.await(500));
    for (const Asked& asked : calls.all()) {
        assert_int_equal(asked.error, Error::kRefused);
    }
    assert_false(calls->available());
    assert_int_equal(calls.errors(Error::kRefused), 3);
    assert_int_equal(calls->counts().opened, 1);
    assert_int_equal(loop.said("redis \"fleet\" 127.0.0.1:1: refused (Connection refused)"), 1);
}

// Late replies do not show that Redis keeps up. A reply to a probe does.
void test_a_late_reply_does_not_close_the_breaker_but_the_next_probe_does(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Calls calls(settings_for(server.path(), 50), &loop);
    calls.ask_echo("warm");
    server.answers = false;
    loop.run_for(5);
    calls.ask_echo("late");
    assert_false(calls->available());
    server.say(bulk("late"));
    loop.run_for(10);
    assert_false(calls->available());
    server.answers = true;
    assert_true(calls.await_open(false, 200));
    assert_int_equal(loop.said("answers again"), 1);
    assert_int_equal(server.count("SET"), 1);
}

void test_a_quiet_client_does_not_log_failed_calls(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words&) { return "-OOM no\r\n"; };
    Settings settings = settings_for(server.path());
    settings.quiet = true;
    Calls calls(settings, &loop);
    for (unsigned i = 1; i <= 5; i++) {
        assert_int_equal(calls.ask_echo("x").error, Error::kOutOfMemory);
    }
    assert_false(calls->available());
    assert_true(calls.await_open(false, 500));
    assert_int_equal(loop.said("redis"), 0);
}

void test_a_probe_closes_the_breaker(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words&) {
        return "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    };
    Calls calls(settings_for(server.path()), &loop);
    for (unsigned i = 1; i <= 5; i++) {
        assert_true(calls->available());
        assert_int_equal(calls.ask_echo("x").error, Error::kOutOfMemory);
    }
    assert_false(calls->available());
    assert_int_equal(calls->counts().opened, 1);
    assert_true(calls.await_open(false, 500));
    assert_int_equal(server.count("SET"), 1);
    assert_int_equal(server.accepted, 1);
    assert_int_equal(loop.said("redis \"fleet\" unix:" + server.path() + ": answers again"), 1);
}

void test_the_interval_between_failing_probes_grows(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    std::vector<Milliseconds> probes;
    server.handshake = [&](const Words& command) {
        if (command[0] == "SET") {
            probes.push_back(loop.now());
            return std::string("-READONLY You can't write against a read only replica.\r\n");
        }
        return FakeServer::healthy(command);
    };
    server.answer = [](const Words&) { return "-READONLY You can't write against a read only replica.\r\n"; };
    Calls calls(settings_for(server.path()), &loop);
    for (unsigned i = 0; i < 5; i++) {
        calls.ask_echo("x");
    }
    const Milliseconds start = loop.now();
    loop.run_for(1000);
    assert_int_equal(probes.size(), 4);
    for (const Milliseconds expected : {50, 150, 350, 750}) {
        const Milliseconds at = probes[expected == 50    ? 0
                                       : expected == 150 ? 1
                                       : expected == 350 ? 2
                                                         : 3] -
                                start;
        assert_in_range(at, expected - 5, expected + 80);
    }
    assert_false(calls->available());
    assert_int_equal(server.accepted, 1);
    assert_int_equal(loop.said("readonly"), 1);
}

void test_an_unanswered_probe_closes_the_connection(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Settings settings = settings_for(server.path(), 50);
    settings.connect_timeout = 150;
    Calls calls(settings, &loop);
    calls.ask_echo("warm");
    server.answers = false;
    calls.ask_echo("x");
    assert_true(loop.run_until([&] { return server.count("SET") == 1; }));
    const Milliseconds start = loop.now();
    assert_true(loop.run_until([&] { return server.accepted == 2; }, 2000));
    assert_in_range(loop.now() - start, 200, 500);
    assert_int_equal(server.count("SET"), 1);
    assert_int_equal(loop.said("the probe was not answered") + loop.said("no answer"), 1);
    server.answers = true;
    assert_true(calls.await_open(false, 2000));
    assert_int_equal(calls.ask_echo("y").error, Error::kNone);
}

// Answers handshakes by an error, and records their times.
void reject_handshakes(FakeServer* server, TestLoop* loop, std::vector<Milliseconds>* attempts) {
    server->handshake = [=](const Words& command) {
        if (command[0] == "PING") {
            attempts->push_back(loop->now());
        }
        return std::string("-LOADING Redis is loading the dataset in memory\r\n");
    };
}

void test_the_interval_between_attempts_to_connect_grows(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    std::vector<Milliseconds> attempts;
    reject_handshakes(&server, &loop, &attempts);
    Calls calls(settings_for(server.path()), &loop);
    assert_int_equal(calls.ask_echo("x").error, Error::kLoading);
    assert_false(calls->available());
    loop.run_for(1000);
    assert_int_equal(attempts.size(), 5);
    const Milliseconds expected[] = {0, 50, 150, 350, 750};
    for (unsigned i = 0; i < 5; i++) {
        assert_in_range(attempts[i] - attempts[0], expected[i] - (i != 0 ? 5 : 0), expected[i] + 80);
    }
    server.handshake = FakeServer::healthy;
    assert_true(calls.await_open(false, 1200));
    assert_true(calls->available());
}

void test_the_interval_between_attempts_is_random_by_up_to_a_half(void**) {
    TestLoop loop;
    loop.chance = 25;
    FakeServer server(&loop);
    std::vector<Milliseconds> attempts;
    reject_handshakes(&server, &loop, &attempts);
    Calls calls(settings_for(server.path()), &loop);
    calls.ask_echo("x");
    assert_true(loop.run_until([&] { return attempts.size() == 2; }));
    assert_in_range(attempts[1] - attempts[0], 24, 45);
}

void test_the_known_address_stays_when_the_lookup_fails(void**) {
    TestLoop loop;
    Settings settings = settings_for("");
    settings.address.host = std::string(64, 'x') + ".invalid";
    settings.address.port = 1;
    Calls calls(settings, &loop, {"127.0.0.1"});
    assert_int_equal(calls.ask_echo("x").error, Error::kRefused);
    assert_true(loop.run_until([&] { return loop.said("unresolved (the host has no address now)") == 1; }));
    assert_true(loop.run_until([&] { return loop.attached == 1; }));
    assert_true(loop.run_until([&] { return loop.attached == 0; }));
}

void test_calls_in_flight_are_answered_by_closed_when_the_connection_is_lost(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    Calls calls(settings_for(server.path()), &loop);
    for (unsigned i = 0; i < 4; i++) {
        calls.echo("x");
    }
    assert_true(loop.run_until([&] { return server.count("EVALSHA") == 4; }));
    server.hang_up();
    assert_true(calls.await(200));
    for (const Asked& asked : calls.all()) {
        assert_int_equal(asked.error, Error::kClosed);
    }
    assert_int_equal(calls.errors(Error::kClosed), 4);
    assert_true(calls->available());
    server.answer = echo_back;
    assert_string_equal(calls.ask_echo("y").reply.c_str(), "y");
    assert_int_equal(server.accepted, 2);
}

void test_an_idle_connection_that_the_server_closes_is_not_a_failure(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Calls calls(settings_for(server.path()), &loop);
    for (unsigned i = 1; i <= 20; i++) {
        assert_int_equal(calls.ask_echo("x").error, Error::kNone);
        assert_int_equal(server.accepted, i);
        server.hang_up();
        assert_true(loop.run_until([&] { return loop.attached == 0; }));
        loop.run_for(2);
        assert_true(calls->available());
    }
    assert_int_equal(calls->counts().opened, 0);
    assert_int_equal(loop.lines.size(), 0);
}

void test_a_server_that_drops_every_call_opens_the_breaker(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.drops = true;
    Calls calls(settings_for(server.path()), &loop);
    for (unsigned i = 0; i < 20 && calls->available(); i++) {
        assert_int_equal(calls.ask_echo("x").error, Error::kClosed);
        loop.run_for(2);
    }
    assert_false(calls->available());
    assert_int_equal(calls.all().size(), 5);
}

void test_the_client_reconnects_at_once_after_a_loss_behind_the_probe(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Calls calls(settings_for(server.path(), 50), &loop);
    calls.ask_echo("warm");
    loop.run_for(5);
    server.answers = false;
    calls.ask_echo("late");
    assert_true(loop.run_until([&] { return server.count("SET") == 1; }));
    server.say(bulk("late") + "+OK\r\n");
    assert_true(calls.await_open(false, 50));
    server.hang_up();
    assert_true(loop.run_until([&] { return loop.attached == 0; }));
    server.answers = true;
    assert_int_equal(calls.ask_echo("x").error, Error::kNone);
}

void test_the_queue_to_a_slow_server_does_not_grow(void**) {
    TestLoop loop;
    SlowServer slow(&loop);
    Calls calls(settings_for(slow.server.path(), 20), &loop);
    slow.overload(&calls);
    assert_int_equal(slow.server.accepted, 1);
}

void test_five_shape_errors_open_the_breaker(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words&) { return ":1\r\n"; };
    Calls calls(settings_for(server.path()), &loop);
    for (unsigned i = 0; i < 5; i++) {
        assert_true(calls->available());
        calls.ask_echo("x");
    }
    assert_false(calls->available());
}

void test_a_reply_that_the_caller_distrusts_counts_as_a_failure(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Calls calls(settings_for(server.path()), &loop);
    calls.ask_echo("warm");
    for (unsigned i = 1; i <= 5; i++) {
        assert_true(calls->available());
        calls->distrust(Error::kShape, "what?");
        assert_int_equal(calls.errors(Error::kShape), i);
    }
    assert_false(calls->available());
    assert_true(calls.await_open(false));
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refused_connection_fails_all_calls_at_once_and_opens_the_breaker),
        cmocka_unit_test(test_a_late_reply_does_not_close_the_breaker_but_the_next_probe_does),
        cmocka_unit_test(test_a_quiet_client_does_not_log_failed_calls),
        cmocka_unit_test(test_a_probe_closes_the_breaker),
        cmocka_unit_test(test_the_interval_between_failing_probes_grows),
        cmocka_unit_test(test_an_unanswered_probe_closes_the_connection),
        cmocka_unit_test(test_the_interval_between_attempts_to_connect_grows),
        cmocka_unit_test(test_the_interval_between_attempts_is_random_by_up_to_a_half),
        cmocka_unit_test(test_the_known_address_stays_when_the_lookup_fails),
        cmocka_unit_test(test_calls_in_flight_are_answered_by_closed_when_the_connection_is_lost),
        cmocka_unit_test(test_an_idle_connection_that_the_server_closes_is_not_a_failure),
        cmocka_unit_test(test_a_server_that_drops_every_call_opens_the_breaker),
        cmocka_unit_test(test_the_client_reconnects_at_once_after_a_loss_behind_the_probe),
        cmocka_unit_test(test_the_queue_to_a_slow_server_does_not_grow),
        cmocka_unit_test(test_five_shape_errors_open_the_breaker),
        cmocka_unit_test(test_a_reply_that_the_caller_distrusts_counts_as_a_failure),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
