// A hole, a time in which all packets are lost: how soon after it calls are sent again.
#include <algorithm>

#include "calls.h"

namespace rate_limit::redis {
namespace {

Settings with_spare(const std::string& path) {
    Settings settings = settings_for(path, 20);
    settings.spare = true;
    return settings;
}

// A server with a connection. In a hole the server receives nothing, and packets of the hole are lost, as if
// the kernel did not retransmit. (The kernel retransmits after 200 and 600 ms, so the holes here are longer.)
struct Hole {
    Hole(Settings (*settings)(const std::string&), Milliseconds connect_timeout, std::uint32_t chance)
        : server(&loop), calls(with(settings(server.path()), connect_timeout), &loop) {
        loop.chance = chance;
        server.answer = echo_back;
        assert_int_equal(calls.ask_echo("warm").error, Error::kNone);
        loop.run_for(5);
    }

    static Settings with(Settings settings, Milliseconds connect_timeout) {
        settings.connect_timeout = connect_timeout;
        return settings;
    }

    // The time from the end of a hole until calls are sent again.
    Milliseconds recovery(Milliseconds length) {
        server.answers = false;
        assert_int_equal(calls.ask_echo("lost").error, Error::kTimedOut);
        assert_false(calls->available());
        loop.run_for(length);
        server.answers = true;
        const Milliseconds end = loop.now();
        assert_true(calls.await_open(false, 20'000));
        return loop.now() - end;
    }

    TestLoop loop;
    FakeServer server;
    Calls calls;
};

void test_calls_are_sent_again_within_a_second(void**) {
    for (const std::uint32_t chance : {0U, 61U, 124U, 4'000'000'019U}) {
        Milliseconds longest = 0;
        for (Milliseconds length = 400; length < 4000; length += 170) {
            Hole hole(with_spare, 1000, chance);
            longest = std::max(longest, hole.recovery(length));
            assert_int_equal(hole.calls.ask_echo("again").error, Error::kNone);
            hole.loop.run_for(20);
            assert_int_equal(hole.loop.attached, 1);
            assert_int_equal(hole.calls->counts().opened, 1);
        }
        if (longest > 700) {
            fail_msg("Redis was asked again after %u ms", static_cast<unsigned>(longest));
        }
    }
}

void test_repeated_holes_do_not_delay_the_recovery(void**) {
    Hole hole(with_spare, 1000, 77);
    for (Milliseconds length = 450; length < 3000; length += 410) {
        const Milliseconds took = hole.recovery(length);
        if (took > 700) {
            fail_msg("a hole of %u ms was over after %u ms", static_cast<unsigned>(length),
                     static_cast<unsigned>(took));
        }
    }
}

void test_an_attempt_keeps_its_connect_timeout_beside_a_second_one(void**) {
    Hole hole(with_spare, 1000, 0);
    hole.server.answers = false;
    const Milliseconds start = hole.loop.now();
    const auto await_connection = [&](unsigned number) {
        assert_true(hole.loop.run_until([&] { return hole.server.accepted == number; }));
        assert_true(hole.server.connections() <= 2);
        return hole.loop.now() - start;
    };
    hole.calls.ask_echo("lost");
    assert_int_equal(hole.server.accepted, 2);
    assert_true(hole.loop.run_until([&] { return hole.server.count("SET") == 1; }));
    // An attempt of the hole lasts for connect_timeout. Then there is a new attempt each half of
    // connect_timeout.
    assert_in_range(await_connection(3), 1000, 1020);
    assert_in_range(await_connection(4), 1500, 1530);
    assert_in_range(await_connection(5), 2000, 2040);
    hole.loop.run_for(400);
    // A handshake that is answered within connect_timeout is used, and the other connection is closed.
    hole.server.answers = true;
    hole.server.say("+PONG\r\n" + bulk(std::string(40, 'a')));
    assert_true(hole.calls.await_open(false, 50));
    hole.loop.run_for(5);
    assert_int_equal(hole.server.connections(), 1);
    assert_string_equal(hole.calls.ask_echo("again").reply.c_str(), "again");
}

void test_a_short_connect_timeout_does_not_flood_the_server(void**) {
    Hole hole(with_spare, 10, 0);
    hole.server.answers = false;
    hole.calls.ask_echo("lost");
    hole.server.accepted = 0;
    hole.loop.run_for(5000);
    assert_in_range(hole.server.accepted, 10, 20);
}

void test_a_server_that_refuses_connections_gets_one_attempt_at_a_time(void**) {
    Hole hole(with_spare, 1000, 0);
    hole.server.handshake = [](const Words&) { return "-LOADING not yet\r\n"; };
    hole.server.hang_up();
    hole.server.accepted = 0;
    hole.loop.run_for(5);
    assert_int_equal(hole.calls.ask_echo("x").error, Error::kLoading);
    unsigned most = 0;
    const Milliseconds end = hole.loop.now() + 3000;
    while (hole.loop.now() < end) {
        hole.loop.turn();
        most = std::max(most, hole.loop.attached);
    }
    assert_int_equal(most, 1);
    assert_in_range(hole.server.accepted, 5, 8);
    hole.server.handshake = FakeServer::healthy;
    assert_true(hole.calls.await_open(false, 1100));
}

void test_a_client_without_a_spare_never_has_two_connections(void**) {
    Hole hole([](const std::string& path) { return settings_for(path, 20); }, 300, 0);
    hole.server.answers = false;
    hole.calls.ask_echo("lost");
    unsigned most = 0;
    const Milliseconds end = hole.loop.now() + 3000;
    while (hole.loop.now() < end) {
        hole.loop.turn();
        most = std::max(most, hole.loop.attached);
    }
    assert_int_equal(most, 1);
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_are_sent_again_within_a_second),
        cmocka_unit_test(test_repeated_holes_do_not_delay_the_recovery),
        cmocka_unit_test(test_an_attempt_keeps_its_connect_timeout_beside_a_second_one),
        cmocka_unit_test(test_a_short_connect_timeout_does_not_flood_the_server),
        cmocka_unit_test(test_a_server_that_refuses_connections_gets_one_attempt_at_a_time),
        cmocka_unit_test(test_a_client_without_a_spare_never_has_two_connections),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
