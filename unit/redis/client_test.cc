// The client: one connection for all calls, which are answered exactly once and in order.
#include "redis/client.h"

#include <malloc.h>

#include "calls.h"

namespace rate_limit::redis {
namespace {

void test_nothing_connects_before_the_first_call(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Calls calls(settings_for(server.path()), &loop);
    loop.run_for(20);
    assert_int_equal(server.accepted, 0);
    assert_true(calls->available());
    assert_string_equal(calls.ask_echo("x").reply.c_str(), "x");
    assert_int_equal(server.accepted, 1);
}

void test_one_connection_serves_all_calls_in_order(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Calls calls(settings_for(server.path()), &loop);
    for (unsigned turn = 0; turn < 20; turn++) {
        for (unsigned i = 0; i < 50; i++) {
            calls.echo(std::to_string(turn * 50 + i));
        }
        loop.turn();
    }
    assert_true(calls.await());
    for (unsigned i = 0; i < 1000; i++) {
        assert_int_equal(calls.all()[i].error, Error::kNone);
        assert_string_equal(calls.all()[i].reply.c_str(), std::to_string(i).c_str());
        assert_int_equal(calls.all()[i].position, i);
    }
    assert_int_equal(server.accepted, 1);
    assert_int_equal(server.count("SCRIPT"), 1);
    assert_int_equal(server.count("PING"), 1);
    assert_int_equal(server.count("AUTH") + server.count("SELECT"), 0);
    assert_int_equal(calls->counts().calls, 1000);
    assert_false(calls.answered_inside());
}

void test_the_handshake_sends_password_database_and_script_in_this_order(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Settings settings = settings_for(server.path());
    settings.address.user = "alice";
    settings.address.password = "pass word\r\n$1";
    settings.address.database = 7;
    Calls calls(settings, &loop);
    assert_int_equal(calls.ask_echo("x").error, Error::kNone);
    assert_true(server.commands[0] == (Words{"AUTH", "alice", "pass word\r\n$1"}));
    assert_true(server.commands[1] == (Words{"SELECT", "7"}));
    assert_true(server.commands[2] == (Words{"SCRIPT", "LOAD", std::string(kEcho)}));
    assert_string_equal(server.commands[3][0].c_str(), "EVALSHA");
}

void test_a_password_alone_is_for_the_default_user(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Settings settings = settings_for(server.path());
    settings.address.password = "secret";
    Calls calls(settings, &loop);
    assert_int_equal(calls.ask_echo("x").error, Error::kNone);
    assert_true(server.commands[0] == (Words{"AUTH", "secret"}));
}

void test_no_call_is_answered_before_send_returns(void**) {
    TestLoop loop;
    Calls nowhere(settings_for(Folder::own().file("nowhere")), &loop);
    nowhere.echo("x");
    assert_true(nowhere.await());
    assert_int_equal(nowhere.all()[0].error, Error::kRefused);
    assert_false(nowhere.answered_inside());

    Settings settings = settings_for("");
    settings.address.host = "no-such-host.invalid";
    Calls unresolved(settings, &loop);
    unresolved.echo("x");
    assert_true(unresolved.await());
    assert_int_equal(unresolved.all()[0].error, Error::kUnresolved);
    assert_false(unresolved.answered_inside());

    FakeServer server(&loop);
    loop.refuse_to_attach = true;
    Calls unattached(settings_for(server.path()), &loop);
    unattached.echo("x");
    assert_true(unattached.await());
    assert_int_not_equal(unattached.all()[0].error, Error::kNone);
    assert_false(unattached.answered_inside());
}

void test_calls_wait_for_the_handshake(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    server.accepts = false;
    Calls calls(settings_for(server.path()), &loop);
    calls.echo("0");
    loop.run_for(30);
    calls.echo("1");
    server.accepts = true;
    calls.echo("2");
    assert_true(calls.await());
    for (unsigned i = 0; i < 3; i++) {
        assert_string_equal(calls.all()[i].reply.c_str(), std::to_string(i).c_str());
    }
    assert_int_equal(server.accepted, 1);
}

void test_a_reply_that_arrives_byte_by_byte_is_complete(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    Calls calls(settings_for(server.path()), &loop);
    calls.echo("x");
    calls.echo("y");
    assert_true(loop.run_until([&] { return server.count("EVALSHA") == 2; }));
    const std::string text = bulk(std::string("a\r\n\0$5\r\n", 8)) + bulk("");
    for (const char byte : text) {
        server.say({byte});
        loop.turn();
    }
    assert_true(calls.await());
    assert_true(calls.all()[0].reply == std::string("a\r\n\0$5\r\n", 8));
    assert_true(calls.all()[1].error == Error::kNone && calls.all()[1].reply.empty());
}

void test_a_large_reply_is_complete(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    const std::string large(5'000'000, 'x');
    server.answer = [&](const Words&) { return bulk(large); };
    Calls calls(settings_for(server.path(), 5000), &loop);
    assert_true(calls.ask_echo("x").reply == large);
}

void test_a_full_socket_never_blocks_and_loses_nothing(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words& command) {
        return bulk(std::to_string(command[3].size()) + command[3].substr(0, 3));
    };
    Calls calls(settings_for(server.path(), 20'000), &loop);
    calls.ask_echo("warm");
    server.read(false);
    const std::string large(4'000'000, 'x');
    Milliseconds longest = 0;
    for (unsigned i = 0; i < 8; i++) {
        const Milliseconds start = milliseconds_of_work();
        calls.echo(std::to_string(100 + i) + large);
        loop.turn();
        loop.turn();
        longest = std::max(longest, milliseconds_of_work() - start);
    }
    loop.run_for(30);
    assert_true(longest < 500);
    assert_int_equal(calls.answered(), 1);
    server.read(true);
    assert_true(calls.await(20'000));
    for (unsigned i = 0; i < 8; i++) {
        assert_string_equal(calls.all()[1 + i].reply.c_str(), ("4000003" + std::to_string(100 + i)).c_str());
    }
    assert_int_equal(server.accepted, 1);
}

void test_a_client_that_is_deleted_answers_each_call_once(void**) {
    for (unsigned stage = 0; stage < 5; stage++) {
        TestLoop loop;
        FakeServer server(&loop);
        Calls calls(settings_for(server.path(), stage == 4 ? 30 : 1000), &loop);
        for (unsigned i = 0; i < 10; i++) {
            calls.echo("x");
        }
        if (stage == 1) {
            loop.turn();
        } else if (stage >= 2) {
            assert_true(loop.run_until([&] { return server.count("EVALSHA") == 10; }));
        }
        if (stage == 3) {
            server.say(bulk("0") + bulk("1") + "$10\r\nabc");
            assert_true(loop.run_until([&] { return calls.answered() == 2; }));
        } else if (stage == 4) {
            assert_true(calls.await());
            assert_true(loop.run_until([&] { return server.count("SET") == 1; }));
        }
        calls.end();
        assert_int_equal(calls.answered(), 10);
        assert_int_equal(loop.attached, 0);
        for (unsigned i = stage == 3 ? 2 : 0; i < 10; i++) {
            assert_int_equal(calls.all()[i].error, stage == 4 ? Error::kTimedOut : Error::kClosed);
        }
        loop.run_for(2);
    }
}

void test_a_client_may_be_deleted_during_a_lookup(void**) {
    TestLoop loop;
    Settings settings = settings_for("");
    settings.address.host = "localhost";
    settings.address.port = 1;
    Calls calls(settings, &loop, {"127.0.0.1"});
    assert_int_equal(calls.ask_echo("x").error, Error::kRefused);
    loop.run_for(52);
    calls.end();
    loop.run_for(20);
}

// The heap of the process, in bytes.
std::size_t heap() { return mallinfo2().uordblks; }

void test_ten_thousand_calls_leak_no_memory(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    const Settings settings = settings_for(server.path(), 5000);
    Client* client = Client::make(settings, {}, &loop);
    unsigned answered = 0;
    unsigned sent = 0;
    const auto round = [&] {
        for (unsigned i = 0; i < 16; i++, sent++) {
            Call* call = client->make_call();
            call->command.append(command_of({"EVALSHA", "x", "0", std::string(100, 'x')}));
            client->send(
                call,
                [](void* self, Error error, std::string_view reply) {
                    *static_cast<unsigned*>(self) += error == Error::kNone && reply.size() == 100 ? 1 : 0;
                },
                &answered);
        }
        assert_true(loop.run_until([&] { return answered == sent; }));
        server.commands.clear();
    };
    for (unsigned i = 0; i < 20; i++) {
        round();
    }
    server.commands.shrink_to_fit();
    const std::size_t before = heap();
    while (sent < 10'000) {
        round();
    }
    server.commands.shrink_to_fit();
    assert_true(heap() < before + 10'000);
    delete client;
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_connects_before_the_first_call),
        cmocka_unit_test(test_one_connection_serves_all_calls_in_order),
        cmocka_unit_test(test_the_handshake_sends_password_database_and_script_in_this_order),
        cmocka_unit_test(test_a_password_alone_is_for_the_default_user),
        cmocka_unit_test(test_no_call_is_answered_before_send_returns),
        cmocka_unit_test(test_calls_wait_for_the_handshake),
        cmocka_unit_test(test_a_reply_that_arrives_byte_by_byte_is_complete),
        cmocka_unit_test(test_a_large_reply_is_complete),
        cmocka_unit_test(test_a_full_socket_never_blocks_and_loses_nothing),
        cmocka_unit_test(test_a_client_that_is_deleted_answers_each_call_once),
        cmocka_unit_test(test_a_client_may_be_deleted_during_a_lookup),
        cmocka_unit_test(test_ten_thousand_calls_leak_no_memory),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
