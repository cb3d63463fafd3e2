// A client uses native commands where the server has them. A call that the native command refuses is repeated
// by the script, and changes nothing twice.
#include "calls.h"

namespace rate_limit::redis {
namespace {

constexpr std::string_view kNative = "NATIVE.ECHO";

// A server that has the native command or not, or that answers it by an error.
struct Host {
    explicit Host(TestLoop* loop) : server(loop) {
        server.answer = [this](const Words& command) -> std::string {
            if (command[0] != kNative) {
                return echo_back(command);
            }
            return !error.empty() ? "-" + error + "\r\n" : bulk(command.size() > 2 ? command[2] : "");
        };
    }

    std::size_t natives() const { return server.count(std::string(kNative)); }
    std::size_t scripts() const { return server.count("EVALSHA"); }

    FakeServer server;
    std::string error;  // of the native command
};

// The text of the probe must live as long as the client.
const std::string& probe() {
    static const std::string text = command_of({std::string(kNative), "0"});
    return text;
}

Settings native_settings(const Host& host) {
    Settings settings = settings_for(host.server.path());
    settings.native_probe = probe();
    return settings;
}

const Asked& ask(Calls* calls, const std::string& text) {
    const Asked& asked = calls->send({"EVALSHA", sha1_of(kEcho), "0", text}, kNative);
    assert_true(calls->await());
    return asked;
}

void test_the_first_call_finds_the_command_and_the_next_use_it(void**) {
    TestLoop loop;
    Host host(&loop);
    Calls calls(native_settings(host), &loop);
    assert_string_equal(ask(&calls, "one").reply.c_str(), "one");
    assert_int_equal(host.scripts(), 1);
    for (const char* text : {"two", "three"}) {
        assert_string_equal(ask(&calls, text).reply.c_str(), text);
    }
    assert_true(calls->native());
    assert_int_equal(host.scripts(), 1);
    assert_int_equal(host.natives(), 3);
    const Words& last = host.server.commands.back();
    assert_int_equal(last.size(), 3);
    assert_string_equal(last[1].c_str(), "0");
}

void test_a_call_without_a_native_command_stays_a_script(void**) {
    TestLoop loop;
    Host host(&loop);
    Calls calls(native_settings(host), &loop);
    for (const char* text : {"one", "two", "three"}) {
        assert_string_equal(calls.ask_echo(text).reply.c_str(), text);
    }
    assert_true(calls->native());
    assert_int_equal(host.scripts(), 3);
}

void test_a_client_that_uses_none_never_asks(void**) {
    TestLoop loop;
    Host host(&loop);
    Calls calls(settings_for(host.server.path()), &loop);
    ask(&calls, "one");
    ask(&calls, "two");
    assert_int_equal(host.natives(), 0);
}

void test_a_call_is_repeated_by_the_script_when_the_command_is_gone(void**) {
    for (const char* error : {"ERR unknown command 'NATIVE.ECHO', with args beginning with: ",
                              "NOPERM this user has no permissions to run the 'native.echo' command"}) {
        TestLoop loop;
        Host host(&loop);
        Calls calls(native_settings(host), &loop);
        ask(&calls, "one");
        ask(&calls, "two");
        host.error = error;
        // Several calls in flight are all repeated.
        for (const char* text : {"three", "four", "five"}) {
            calls.send({"EVALSHA", sha1_of(kEcho), "0", text}, kNative);
        }
        assert_true(calls.await());
        for (const Asked& asked : calls.all()) {
            assert_int_equal(asked.error, Error::kNone);
        }
        assert_string_equal(calls.all().back().reply.c_str(), "five");
        assert_false(calls->native());
        const std::size_t natives = host.natives();
        ask(&calls, "six");
        assert_int_equal(host.natives(), natives);
        assert_true(calls->available());
    }
}

void test_a_refused_call_is_repeated_and_the_command_stays_in_use(void**) {
    TestLoop loop;
    Host host(&loop);
    Calls calls(native_settings(host), &loop);
    ask(&calls, "one");
    for (const char* error :
         {"ERR the policies are malformed", "READONLY You can't write against a read only replica."}) {
        host.error = error;
        assert_string_equal(ask(&calls, "two").reply.c_str(), "two");
        assert_true(calls->native());
    }
    host.error.clear();
    const std::size_t scripts = host.scripts();
    assert_string_equal(ask(&calls, "three").reply.c_str(), "three");
    assert_int_equal(host.scripts(), scripts);
}

void test_other_errors_are_not_repeated(void**) {
    TestLoop loop;
    Host host(&loop);
    Calls calls(native_settings(host), &loop);
    ask(&calls, "one");
    const std::size_t scripts = host.scripts();
    host.error = "OOM command not allowed when used memory > 'maxmemory'.";
    assert_int_equal(ask(&calls, "two").error, Error::kOutOfMemory);
    host.error = "WRITE a key cannot be written";
    assert_int_equal(ask(&calls, "three").error, Error::kOther);
    assert_int_equal(host.scripts(), scripts);
}

void test_a_server_without_memory_has_the_command(void**) {
    TestLoop loop;
    Host host(&loop);
    host.error = "OOM command not allowed when used memory > 'maxmemory'.";
    Calls calls(native_settings(host), &loop);
    ask(&calls, "one");
    assert_true(calls->native());
}

void test_a_server_without_the_command_is_asked_again_later(void**) {
    TestLoop loop;
    Host host(&loop);
    host.error = "ERR unknown command";
    Calls calls(native_settings(host), &loop);
    ask(&calls, "one");
    ask(&calls, "two");
    assert_int_equal(host.natives(), 1);
    host.error.clear();
    loop.run_until([] { return false; }, 5000);
    ask(&calls, "three");
    assert_int_equal(host.natives(), 2);
    ask(&calls, "four");
    assert_true(calls->native());
    assert_int_equal(host.natives(), 3);
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_call_finds_the_command_and_the_next_use_it),
        cmocka_unit_test(test_a_call_without_a_native_command_stays_a_script),
        cmocka_unit_test(test_a_client_that_uses_none_never_asks),
        cmocka_unit_test(test_a_call_is_repeated_by_the_script_when_the_command_is_gone),
        cmocka_unit_test(test_a_refused_call_is_repeated_and_the_command_stays_in_use),
        cmocka_unit_test(test_other_errors_are_not_repeated),
        cmocka_unit_test(test_a_server_without_memory_has_the_command),
        cmocka_unit_test(test_a_server_without_the_command_is_asked_again_later),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
