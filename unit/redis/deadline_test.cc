// Deadlines: each call is answered by its deadline, whatever the server does, and late replies are dropped.
#include "calls.h"

namespace rate_limit::redis {
namespace {

void test_a_call_times_out_and_its_late_reply_is_dropped(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words& command) { return command[3] == "late" ? "" : bulk(command[3]); };
    Calls calls(settings_for(server.path(), 100), &loop);
    calls.ask_echo("warm");
    const Asked& late = calls.ask_echo("late");
    assert_int_equal(late.error, Error::kTimedOut);
    assert_in_range(late.took, 95, 300);
    assert_int_equal(calls.errors(Error::kTimedOut), 1);
    server.say(bulk("late"));
    loop.run_for(20);
    assert_string_equal(calls.ask_echo("next").reply.c_str(), "next");
    assert_int_equal(server.accepted, 1);
}

void test_late_replies_are_dropped_and_later_ones_reach_their_calls(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Calls calls(settings_for(server.path(), 60), &loop);
    calls.ask_echo("warm");
    server.answers = false;
    for (unsigned i = 0; i < 100; i++) {
        calls.echo("late" + std::to_string(i));
    }
    assert_true(calls.await());
    server.answers = true;
    for (unsigned i = 0; i < 100; i++) {
        server.say(bulk("late" + std::to_string(i)));
    }
    assert_true(calls.await_open(false));
    for (unsigned i = 0; i < 100; i++) {
        calls.echo(std::to_string(i));
    }
    assert_true(calls.await());
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(calls.all()[1 + i].error, Error::kTimedOut);
        assert_string_equal(calls.all()[101 + i].reply.c_str(), std::to_string(i).c_str());
    }
}

void test_a_stall_fails_all_calls_when_the_first_times_out(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Calls calls(settings_for(server.path(), 200), &loop);
    calls.ask_echo("warm");
    server.answers = false;
    loop.run_for(20);
    calls.echo("first");
    loop.run_for(100);
    calls.echo("second");
    calls.echo("third");
    assert_true(calls.await());
    assert_in_range(calls.all()[1].took, 195, 400);
    assert_true(calls.all()[2].took < 150);
    assert_true(calls.all()[3].took < 150);
    assert_false(calls->available());
    assert_int_equal(calls.errors(Error::kTimedOut), 3);
    assert_int_equal(calls->counts().opened, 1);
}

void test_a_call_sent_in_the_turn_of_a_reply_detects_a_stall(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Calls calls(settings_for(server.path(), 100), &loop);
    calls.ask_echo("warm");
    server.answers = false;
    const Asked& stalled = calls.ask_echo("x");
    assert_int_equal(stalled.error, Error::kTimedOut);
    assert_false(calls->available());
}

void test_a_steady_flow_of_slow_replies_is_not_a_stall(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    Calls calls(settings_for(server.path(), 150), &loop);
    calls.echo("first");
    assert_true(loop.run_until([&] { return server.count("EVALSHA") == 1; }));
    loop.run_for(50);
    calls.echo("second");
    loop.run_for(20);
    server.say(bulk("first"));
    assert_true(calls.await());
    assert_int_equal(calls.all()[0].error, Error::kNone);
    assert_int_equal(calls.all()[1].error, Error::kTimedOut);
    assert_in_range(calls.all()[1].took, 145, 300);
    assert_true(calls->available());
}

void test_calls_delayed_by_a_full_socket_time_out(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words&) { return bulk("x"); };
    Calls calls(settings_for(server.path(), 100), &loop);
    calls.ask_echo("warm");
    loop.run_for(5);
    server.read(false);
    calls.echo(std::string(4'000'000, 'x'));
    calls.echo("y");
    assert_true(calls.await(1000));
    assert_int_equal(calls.errors(Error::kTimedOut), 2);
    assert_false(calls->available());
    server.read(true);
    assert_true(calls.await_open(false));
    assert_int_equal(calls.ask_echo("z").error, Error::kNone);
}

void test_a_call_that_has_timed_out_is_not_retried(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    Calls calls(settings_for(server.path(), 40), &loop);
    assert_int_equal(calls.ask_echo("x").error, Error::kTimedOut);
    assert_int_equal(server.count("EVALSHA"), 1);
    server.say("-NOSCRIPT No matching script. Please use EVAL.\r\n");
    loop.run_for(20);
    assert_int_equal(server.count("EVALSHA"), 1);
}

void test_connection_and_handshake_end_after_connect_timeout(void**) {
    for (const bool accepts : {false, true}) {
        TestLoop loop;
        FakeServer server(&loop);
        server.accepts = accepts;
        server.answers = false;
        Settings settings = settings_for(server.path(), 30);
        settings.connect_timeout = 150;
        Calls calls(settings, &loop);
        const Asked& asked = calls.ask_echo("x");
        assert_int_equal(asked.error, Error::kTimedOut);
        assert_in_range(asked.took, 25, 130);
        assert_false(calls->available());
        assert_true(loop.run_until([&] { return loop.attached == 0; }, 400));
        server.accepts = true;
        server.answers = true;
        assert_true(calls.await_open(false, 2000));
    }
}

void test_an_idle_time_before_a_call_is_not_a_stall(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Settings settings = settings_for(server.path(), 40);
    settings.connect_timeout = 200;
    Calls calls(settings, &loop);
    calls.ask_echo("warm");
    loop.run_for(300);
    server.answers = false;
    calls.ask_echo("late");
    assert_false(calls->available());
    assert_true(loop.run_until([&] { return server.count("SET") == 1 || loop.attached == 0; }));
    assert_int_equal(loop.attached, 1);
    server.say(bulk("late") + "+OK\r\n");
    assert_true(calls.await_open(false, 100));
    assert_int_equal(server.accepted, 1);
    assert_int_equal(loop.said("probe was not answered"), 0);
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_call_times_out_and_its_late_reply_is_dropped),
        cmocka_unit_test(test_late_replies_are_dropped_and_later_ones_reach_their_calls),
        cmocka_unit_test(test_a_stall_fails_all_calls_when_the_first_times_out),
        cmocka_unit_test(test_a_call_sent_in_the_turn_of_a_reply_detects_a_stall),
        cmocka_unit_test(test_a_steady_flow_of_slow_replies_is_not_a_stall),
        cmocka_unit_test(test_calls_delayed_by_a_full_socket_time_out),
        cmocka_unit_test(test_a_call_that_has_timed_out_is_not_retried),
        cmocka_unit_test(test_connection_and_handshake_end_after_connect_timeout),
        cmocka_unit_test(test_an_idle_time_before_a_call_is_not_a_stall),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
