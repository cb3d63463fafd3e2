// Errors and invalid replies of a server are classified, counted and logged.
#include "calls.h"
#include "hiredis_memory.h"

namespace rate_limit::redis {
namespace {

void test_a_missing_script_is_loaded_and_the_call_retried(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    bool forgotten = true;
    server.handshake = [&](const Words& command) {
        forgotten = forgotten && command[0] != "SCRIPT";
        return FakeServer::healthy(command);
    };
    server.answer = [&](const Words& command) {
        return forgotten ? std::string("-NOSCRIPT No matching script. Please use EVAL.\r\n")
                         : echo_back(command);
    };
    Calls calls(settings_for(server.path()), &loop);
    calls.ask_echo("warm");
    forgotten = true;
    for (unsigned i = 0; i < 10; i++) {
        calls.echo(std::to_string(i));
    }
    assert_true(calls.await());
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(calls.all()[1 + i].error, Error::kNone);
        assert_string_equal(calls.all()[1 + i].reply.c_str(), std::to_string(i).c_str());
    }
    assert_int_equal(server.count("EVALSHA"), 21);
    assert_int_equal(calls.errors(Error::kNoScript), 10);
    assert_true(calls->available());
    assert_int_equal(loop.lines.size(), 0);
}

void test_a_call_is_retried_only_once(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words&) { return "-NOSCRIPT No matching script. Please use EVAL.\r\n"; };
    Calls calls(settings_for(server.path()), &loop);
    assert_int_equal(calls.ask_echo("x").error, Error::kNoScript);
    assert_int_equal(server.count("EVALSHA"), 2);
    assert_int_equal(server.count("SCRIPT"), 2);
    loop.run_for(20);
    assert_int_equal(server.count("EVALSHA"), 2);
    for (unsigned i = 2; i <= 5; i++) {
        assert_true(calls->available());
        assert_int_equal(calls.ask_echo("x").error, Error::kNoScript);
    }
    assert_false(calls->available());
}

void test_errors_of_calls_are_classified_and_counted(void**) {
    const struct {
        Error error;
        const char* text;
    } cases[] = {
        {Error::kLoading, "LOADING Redis is loading the dataset in memory"},
        {Error::kBusy, "BUSY Redis is busy running a script."},
        {Error::kReadOnly, "READONLY You can't write against a read only replica."},
        {Error::kOutOfMemory, "OOM command not allowed when used memory > 'maxmemory'."},
        {Error::kDenied, "NOAUTH Authentication required."},
        {Error::kDenied, "NOPERM this user has no permissions"},
        {Error::kMoved, "MOVED 3999 127.0.0.1:6381"},
        {Error::kOther, "ERR something else"},
        {Error::kOther, "BUSYKEY Target key name already exists."},
    };
    for (const auto& each : cases) {
        TestLoop loop;
        FakeServer server(&loop);
        server.answer = [&](const Words&) { return "-" + std::string(each.text) + "\r\n"; };
        Calls calls(settings_for(server.path()), &loop);
        for (unsigned i = 1; i <= 4; i++) {
            const Asked& asked = calls.ask_echo("x");
            assert_int_equal(asked.error, each.error);
            assert_true(asked.reply.empty());
            assert_int_equal(calls.errors(each.error), i);
        }
        assert_int_equal(loop.lines.size(), 1);
        assert_string_equal(loop.lines[0].text.c_str(), ("redis \"fleet\" unix:" + server.path() + ": " +
                                                         error_name(each.error) + " (" + each.text + ")")
                                                            .c_str());
        assert_int_equal(loop.lines[0].severity, Severity::kError);
        assert_true(calls->available());
        server.answer = echo_back;
        assert_int_equal(calls.ask_echo("x").error, Error::kNone);
    }
}

void test_errors_of_the_handshake_are_classified(void**) {
    const struct {
        Error error;
        const char* command;
        const char* text;
    } cases[] = {
        {Error::kDenied, "AUTH", "-WRONGPASS invalid username-password pair or user is disabled.\r\n"},
        {Error::kDenied, "AUTH", "-ERR invalid password\r\n"},
        {Error::kDenied, "SCRIPT", "-NOAUTH Authentication required.\r\n"},
        {Error::kDenied, "SCRIPT",
         "-NOPERM this user has no permissions to run the 'script|load' command\r\n"},
        {Error::kOther, "SELECT", "-ERR DB index is out of range\r\n"},
        {Error::kLoading, "SCRIPT", "-LOADING Redis is loading the dataset in memory\r\n"},
        {Error::kBusy, "SCRIPT", "-BUSY Redis is busy running a script.\r\n"},
        {Error::kShape, "SCRIPT", ":1\r\n"},
        {Error::kShape, "AUTH", "*0\r\n"},
        {Error::kShape, "SELECT", "$-1\r\n"},
        {Error::kProtocol, "AUTH", "HTTP/1.1 400 Bad Request\r\n\r\n"},
        {Error::kProtocol, "SCRIPT", "!\xff\xff\r\n"},
    };
    for (const auto& each : cases) {
        TestLoop loop;
        FakeServer server(&loop);
        server.handshake = [&](const Words& command) {
            return command[0] == each.command ? std::string(each.text) : FakeServer::healthy(command);
        };
        Settings settings = settings_for(server.path());
        settings.address.password = "secret";
        settings.address.database = 1;
        Calls calls(settings, &loop);
        calls.echo("x");
        calls.echo("y");
        assert_true(calls.await());
        for (const Asked& asked : calls.all()) {
            assert_int_equal(asked.error, each.error);
        }
        assert_false(calls->available());
        assert_int_equal(server.count("EVALSHA"), 0);
        assert_int_equal(loop.lines.size(), 1);
        assert_int_equal(loop.said(error_name(each.error)), 1);
        server.handshake = FakeServer::healthy;
        server.answer = echo_back;
        assert_true(calls.await_open(false));
        assert_int_equal(calls.ask_echo("z").error, Error::kNone);
    }
}

void test_an_error_before_the_handshake_is_the_reason_of_the_failure(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answers = false;
    Calls calls(settings_for(server.path()), &loop);
    calls.echo("x");
    assert_true(loop.run_until([&] { return server.connections() == 1; }));
    server.say("-ERR max number of clients reached\r\n");
    server.hang_up();
    assert_true(calls.await(500));
    assert_int_equal(calls.all()[0].error, Error::kOther);
    assert_int_equal(loop.said("max number of clients reached"), 1);
}

void test_garbage_is_a_protocol_error_for_all_calls_in_flight(void**) {
    for (const char* garbage :
         {"what?\r\n", "$abc\r\n", "$-2\r\n", "*-5\r\n", ":1x\r\n", "\r\n", "$5\r\nabcdefgh\r\n+"}) {
        TestLoop loop;
        FakeServer server(&loop);
        server.answer = [&](const Words& command) {
            return command[3] == "bad" ? garbage : bulk(command[3]);
        };
        Calls calls(settings_for(server.path(), 300), &loop);
        calls.ask_echo("warm");
        calls.echo("bad");
        calls.echo("after");
        assert_true(calls.await(1000));
        assert_int_equal(calls.all()[1].error,
                         garbage[0] == '$' && garbage[1] == '5' ? Error::kNone : Error::kProtocol);
        assert_int_equal(calls.all()[2].error, Error::kProtocol);
        assert_true(calls->available());
        assert_true(loop.said("protocol") >= 1);
        assert_int_equal(calls.ask_echo("x").error, Error::kNone);
        assert_int_equal(server.accepted, 2);
    }
}

void test_the_header_of_a_huge_array_allocates_nothing(void**) {
    for (const char* promise : {"*150000000\r\n", "*4294967295\r\n", "%1000000000\r\n", "$536870912\r\nx"}) {
        TestLoop loop;
        FakeServer server(&loop);
        server.answer = [&](const Words&) { return promise; };
        Calls calls(settings_for(server.path(), 50), &loop);
        const Milliseconds start = milliseconds_of_work();
        assert_int_not_equal(calls.ask_echo("x").error, Error::kNone);
        calls.end();
        assert_true(milliseconds_of_work() - start < 500);
    }
}

void test_an_incomplete_reply_is_closed(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    Calls calls(settings_for(server.path()), &loop);
    calls.echo("x");
    assert_true(loop.run_until([&] { return server.count("EVALSHA") == 1; }));
    server.say("$100\r\nabc");
    loop.run_for(5);
    server.hang_up();
    assert_true(calls.await(200));
    assert_int_equal(calls.all()[0].error, Error::kClosed);
}

void test_a_reply_of_an_unexpected_type_is_a_shape_error(void**) {
    for (const char* reply :
         {":1\r\n", "+OK\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "*1\r\n$1\r\nx\r\n", "_\r\n", "#t\r\n",
          ",1.5\r\n", "%1\r\n+a\r\n+b\r\n", "~1\r\n+a\r\n", "=5\r\ntxt:x\r\n", "(123\r\n"}) {
        TestLoop loop;
        FakeServer server(&loop);
        server.answer = [&](const Words& command) { return command[3] == "bad" ? reply : bulk(command[3]); };
        Calls calls(settings_for(server.path(), 300), &loop);
        calls.echo("bad");
        calls.echo("good");
        assert_true(calls.await());
        if (calls.all()[0].error != Error::kShape) {
            fail_msg("%s is taken for %s", reply, error_name(calls.all()[0].error));
        }
        assert_string_equal(calls.all()[1].reply.c_str(), "good");
        assert_int_equal(calls.errors(Error::kShape), 1);
    }
}

void test_a_reply_that_is_too_large_is_rejected_before_it_is_stored(void**) {
    std::string arrays;
    for (unsigned i = 0; i < 1000; i++) {
        arrays += "*1000\r\n";
    }
    std::string deep;
    for (unsigned i = 0; i < 1'000'000; i++) {
        deep += "*1\r\n";
    }
    std::string strings = "*100\r\n";
    for (unsigned i = 0; i < 100; i++) {
        strings += bulk(std::string(20'000, 'x'));
    }
    const std::string long_text(8U << 20, 'x');
    for (const std::string& reply : {bulk(long_text), "$1200000000\r\n" + long_text, "+" + long_text,
                                     "-ERR " + long_text, arrays, deep, strings}) {
        const HiredisMemory memory;
        TestLoop loop;
        FakeServer server(&loop);
        server.answer = [&](const Words& command) {
            return command[3] == "large" ? reply : echo_back(command);
        };
        Settings settings = settings_for(server.path(), 5000);
        settings.most_reply = 1U << 20;
        Calls calls(settings, &loop);
        assert_int_equal(calls.ask_echo("warm").error, Error::kNone);
        assert_int_equal(calls.ask_echo("large").error, Error::kProtocol);
        if (HiredisMemory::most > 4U << 20) {
            fail_msg("%zu bytes for a reply that starts with %.12s", HiredisMemory::most, reply.c_str());
        }
        assert_int_equal(loop.said("protocol (the server sent a reply that is too large"), 1);
        assert_true(calls.await_open(false));
        assert_string_equal(calls.ask_echo("x").reply.c_str(), "x");
    }
}

void test_a_reply_of_the_largest_size_is_read(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Settings settings = settings_for(server.path(), 5000);
    settings.most_reply = 1U << 20;
    Calls calls(settings, &loop);
    assert_int_equal(calls.ask_echo(std::string(1'000'000, 'x')).reply.size(), 1'000'000);
    settings.most_reply = 16U << 20;
    Calls more(settings, &loop);
    assert_int_equal(more.ask_echo(std::string(15'000'000, 'x')).reply.size(), 15'000'000);
}

void test_an_unexpected_reply_closes_only_the_connection(void**) {
    for (const char* text : {"+OK\r\n", "$1\r\nx\r\n", ":1\r\n", "*2\r\n+a\r\n+b\r\n", "$-1\r\n", "*0\r\n",
                             "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", "#t\r\n", ",1.5\r\n", "_\r\n",
                             ">2\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n", ">1\r\n$8\r\npmessage\r\n"}) {
        TestLoop loop;
        FakeServer server(&loop);
        server.answer = echo_back;
        Calls calls(settings_for(server.path(), 2000), &loop);
        calls.ask_echo("warm");
        server.say(text);
        assert_true(loop.run_until([&] { return loop.attached == 0; }));
        assert_int_equal(loop.said("the server sent a reply that no command waits for"), 1);
        assert_true(calls->available());
        assert_string_equal(calls.ask_echo("x").reply.c_str(), "x");
    }
}

void test_an_unexpected_error_is_the_reason_of_the_loss(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Calls calls(settings_for(server.path()), &loop);
    calls.ask_echo("warm");
    server.say("-ERR goodbye\r\n");
    assert_true(loop.run_until([&] { return loop.attached == 0; }));
    assert_int_equal(loop.said("ERR goodbye"), 1);
    assert_true(calls->available());
    assert_string_equal(calls.ask_echo("x").reply.c_str(), "x");
}

void test_an_unexpected_push_is_ignored(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Calls calls(settings_for(server.path()), &loop);
    calls.ask_echo("warm");
    for (const char* text :
         {">2\r\n+invalidate\r\n+x\r\n", ">2\r\n$10\r\ninvalidate\r\n$-1\r\n", ">0\r\n", ">1\r\n:1\r\n"}) {
        server.say(text);
        assert_string_equal(calls.ask_echo("x").reply.c_str(), "x");
    }
    assert_int_equal(loop.lines.size(), 0);
}

void test_a_push_between_replies_is_ignored(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words& command) {
        return ">2\r\n+invalidate\r\n*1\r\n+k\r\n" + bulk(command[3]);
    };
    Calls calls(settings_for(server.path()), &loop);
    for (unsigned i = 0; i < 10; i++) {
        calls.echo(std::to_string(i));
    }
    assert_true(calls.await());
    for (unsigned i = 0; i < 10; i++) {
        assert_string_equal(calls.all()[i].reply.c_str(), std::to_string(i).c_str());
    }
}

void test_a_line_is_logged_every_ten_seconds_with_the_number_suppressed(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words& command) {
        return command[3] == "good" ? bulk("good") : std::string("-OOM command not allowed\r\n");
    };
    Calls calls(settings_for(server.path()), &loop);
    for (unsigned i = 0; i < 30; i++) {
        calls.ask_echo(i % 3 == 0 ? "good" : "bad");
    }
    assert_int_equal(loop.said(": oom ("), 1);
    loop.jump(9'000);
    calls.ask_echo("bad");
    assert_int_equal(loop.said(": oom ("), 1);
    loop.jump(1'000);
    calls.ask_echo("bad");
    assert_int_equal(loop.said(": oom ("), 2);
    const std::string line = "redis \"fleet\" unix:" + server.path() + ": oom (OOM command not allowed)";
    assert_string_equal(loop.lines.back().text.c_str(),
                        (line + ", 20 more times since the last line").c_str());
    loop.jump(10'000);
    calls.ask_echo("bad");
    assert_string_equal(loop.lines.back().text.c_str(), line.c_str());
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_missing_script_is_loaded_and_the_call_retried),
        cmocka_unit_test(test_a_call_is_retried_only_once),
        cmocka_unit_test(test_errors_of_calls_are_classified_and_counted),
        cmocka_unit_test(test_errors_of_the_handshake_are_classified),
        cmocka_unit_test(test_an_error_before_the_handshake_is_the_reason_of_the_failure),
        cmocka_unit_test(test_garbage_is_a_protocol_error_for_all_calls_in_flight),
        cmocka_unit_test(test_the_header_of_a_huge_array_allocates_nothing),
        cmocka_unit_test(test_an_incomplete_reply_is_closed),
        cmocka_unit_test(test_a_reply_of_an_unexpected_type_is_a_shape_error),
        cmocka_unit_test(test_a_reply_that_is_too_large_is_rejected_before_it_is_stored),
        cmocka_unit_test(test_a_reply_of_the_largest_size_is_read),
        cmocka_unit_test(test_an_unexpected_reply_closes_only_the_connection),
        cmocka_unit_test(test_an_unexpected_error_is_the_reason_of_the_loss),
        cmocka_unit_test(test_an_unexpected_push_is_ignored),
        cmocka_unit_test(test_a_push_between_replies_is_ignored),
        cmocka_unit_test(test_a_line_is_logged_every_ten_seconds_with_the_number_suppressed),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
