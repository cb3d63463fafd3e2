// The observer gets each round trip, each error, and each change of the breaker once.
#include "connection/call_observer.h"

#include "calls.h"

namespace rate_limit::redis {
namespace {

class Seen final : public CallObserver {
  public:
    std::int64_t now() override { return clock += 1000; }
    void on_round_trip(std::int64_t micros) override { trips.push_back(micros); }
    void on_error(Error error) override { errors.push_back(error); }
    void on_open() override {
        open++;
        opened++;
    }
    void on_close() override { open--; }

    std::int64_t clock = 0;
    std::vector<std::int64_t> trips;
    std::vector<Error> errors;
    int open = 0;
    int opened = 0;
};

Settings watched(const std::string& path, Seen* seen, Milliseconds timeout = 1000) {
    Settings settings = settings_for(path, timeout);
    settings.observer = seen;
    return settings;
}

void test_a_round_trip_is_from_the_call_to_its_reply(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Seen seen;
    Calls calls(watched(server.path(), &seen), &loop);
    calls.ask_echo("one");
    calls.ask_echo("two");
    // Each call of now() advances the clock by 1000.
    assert_int_equal(seen.trips.size(), 2);
    assert_int_equal(seen.trips[0], 1000);
    assert_int_equal(seen.trips[1], 1000);
    calls.echo("three");
    calls.echo("four");
    assert_true(calls.await());
    assert_int_equal(seen.trips[2], 2000);
    assert_int_equal(seen.trips[3], 2000);
    assert_int_equal(seen.errors.size(), 0);
    assert_int_equal(seen.opened, 0);
}

void test_each_error_is_counted_once(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words&) { return "-OOM command not allowed\r\n"; };
    Seen seen;
    Calls calls(watched(server.path(), &seen), &loop);
    for (unsigned i = 0; i < 4; i++) {
        calls.ask_echo("x");
    }
    assert_int_equal(seen.trips.size(), 4);
    assert_int_equal(seen.errors.size(), 4);
    assert_int_equal(seen.errors[0], Error::kOutOfMemory);
    assert_int_equal(seen.open, 0);
    calls.ask_echo("x");
    assert_int_equal(seen.open, 1);
    assert_true(calls.await_open(false));
    assert_int_equal(seen.open, 0);
    assert_int_equal(seen.opened, 1);
    assert_int_equal(seen.errors.size(), 5);
}

void test_a_late_reply_is_a_round_trip(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words& command) { return command[3] == "late" ? "" : bulk(command[3]); };
    Seen seen;
    Calls calls(watched(server.path(), &seen, 60), &loop);
    calls.ask_echo("warm");
    calls.ask_echo("late");
    assert_int_equal(seen.trips.size(), 1);
    assert_int_equal(seen.errors.size(), 1);
    assert_int_equal(seen.errors[0], Error::kTimedOut);
    server.say(bulk("late"));
    loop.run_for(20);
    assert_int_equal(seen.trips.size(), 2);
    assert_int_equal(seen.errors.size(), 1);
}

void test_a_missing_script_is_an_error_even_if_the_retry_succeeds(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    unsigned asked = 0;
    server.answer = [&](const Words& command) {
        return command[0] == "EVALSHA" && asked++ == 0 ? "-NOSCRIPT No matching script.\r\n"
                                                       : echo_back(command);
    };
    Seen seen;
    Calls calls(watched(server.path(), &seen), &loop);
    assert_int_equal(calls.ask_echo("x").error, Error::kNone);
    assert_int_equal(seen.errors.size(), 1);
    assert_int_equal(seen.errors[0], Error::kNoScript);
    assert_int_equal(seen.trips.size(), 2);
}

void test_an_unreachable_server_opens_the_breaker_once(void**) {
    TestLoop loop;
    Settings settings = settings_for("");
    settings.address.host = "127.0.0.1";
    settings.address.port = 1;
    Seen seen;
    settings.observer = &seen;
    Calls calls(settings, &loop, {"127.0.0.1"});
    for (unsigned i = 0; i < 8; i++) {
        calls.echo("x");
    }
    assert_true(calls.await(500));
    assert_int_equal(seen.open, 1);
    assert_int_equal(seen.errors.size(), 8);
    loop.run_for(300);
    assert_int_equal(seen.open, 1);
    assert_int_equal(seen.opened, 1);
    // A deleted client counts as a closed breaker.
    calls.end();
    assert_int_equal(seen.open, 0);
}

void test_a_stall_opens_the_breaker_and_its_end_closes_it(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Seen seen;
    Calls calls(watched(server.path(), &seen, 60), &loop);
    calls.ask_echo("warm");
    server.answers = false;
    loop.run_for(5);
    calls.ask_echo("x");
    assert_int_equal(seen.open, 1);
    server.answers = true;
    server.say(bulk("x"));
    assert_true(calls.await_open(false));
    assert_int_equal(seen.open, 0);
    assert_int_equal(seen.opened, 1);
}

void test_a_reply_that_cannot_be_read_is_an_error(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Seen seen;
    Calls calls(watched(server.path(), &seen), &loop);
    calls.ask_echo("x");
    for (unsigned i = 0; i < 5; i++) {
        calls->distrust(Error::kShape, "nonsense");
    }
    assert_int_equal(seen.errors.size(), 5);
    assert_int_equal(seen.open, 1);
    calls.end();
    assert_int_equal(seen.open, 0);
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_round_trip_is_from_the_call_to_its_reply),
        cmocka_unit_test(test_each_error_is_counted_once),
        cmocka_unit_test(test_a_late_reply_is_a_round_trip),
        cmocka_unit_test(test_a_missing_script_is_an_error_even_if_the_retry_succeeds),
        cmocka_unit_test(test_an_unreachable_server_opens_the_breaker_once),
        cmocka_unit_test(test_a_stall_opens_the_breaker_and_its_end_closes_it),
        cmocka_unit_test(test_a_reply_that_cannot_be_read_is_an_error),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
