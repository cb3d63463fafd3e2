// A silent connection, as after a lost packet, while Redis answers by a second one.
#include <deque>
#include <map>
#include <random>

#include "calls.h"
#include "slow_server.h"

namespace rate_limit::redis {
namespace {

constexpr Milliseconds kTimeout = 100;
constexpr Milliseconds kSilence = kTimeout / 4;  // after which a second connection is opened

Settings with_spare(const std::string& path) {
    Settings settings = settings_for(path, kTimeout);
    settings.spare = true;
    return settings;
}

std::string answer_of(const Words& command) {
    return command[0] == "TIME" ? "*2\r\n" + bulk("1") + bulk("2") : echo_back(command);
}

// A client with one connection, which is ready.
struct Line {
    Line() : server(&loop), calls(with_spare(server.path()), &loop) {
        server.answer = answer_of;
        assert_int_equal(calls.ask_echo("warm").error, Error::kNone);
        loop.run_for(2);
        server.commands.clear();
    }

    // How often a call has reached the server.
    std::size_t times(const std::string& text) const {
        return static_cast<std::size_t>(
            std::count_if(server.commands.begin(), server.commands.end(),
                          [&](const Words& words) { return words[0] == "EVALSHA" && words[3] == text; }));
    }

    // Makes the first connection silent, and waits until the second one serves.
    void make_spare() {
        server.hold(1);
        calls.echo("held");
        assert_true(loop.run_until([&] { return server.count("SCRIPT") == 1; }, 60));
        loop.run_for(2);
        assert_int_equal(calls.ask_echo("by the second").error, Error::kNone);
    }

    TestLoop loop;
    FakeServer server;
    Calls calls;
};

void test_calls_leave_by_a_second_connection_while_the_first_is_silent(void**) {
    Line line;
    line.server.hold(1);
    const Milliseconds start = line.loop.now();
    Asked& held = line.calls.echo("held");
    assert_true(line.loop.run_until([&] { return line.server.accepted == 2; }, 60));
    assert_in_range(line.loop.now() - start, kSilence - 1, kSilence + 10);
    line.loop.run_for(5);
    Asked& other = line.calls.echo("other");
    assert_true(line.loop.run_until([&] { return other.answers == 1; }, 20));
    assert_string_equal(other.reply.c_str(), "other");
    assert_true(line.calls.await(200));
    assert_int_equal(held.error, Error::kTimedOut);
    assert_in_range(held.took, kTimeout - 1, kTimeout + 20);
    assert_true(line.calls->available());
    assert_int_equal(line.calls->counts().opened, 0);
    assert_int_equal(line.times("held"), 1);
    assert_int_equal(line.loop.lines.size(), 0);
}

void test_delayed_replies_are_dropped(void**) {
    Line line;
    line.make_spare();
    assert_true(line.calls.await(200));
    line.server.let_go(1);
    line.loop.run_for(20);
    for (unsigned i = 0; i < 10; i++) {
        assert_string_equal(line.calls.ask_echo(std::to_string(i)).reply.c_str(), std::to_string(i).c_str());
    }
    assert_int_equal(line.server.connections(), 2);
}

void test_the_connections_take_over_from_each_other(void**) {
    Line line;
    line.make_spare();
    for (unsigned round = 0; round < 6; round++) {
        const unsigned silent = round % 2 == 0 ? 2 : 1;
        line.server.let_go(3 - silent);
        line.loop.run_for(5);
        line.server.hold(silent);
        const std::string text = "round" + std::to_string(round);
        line.calls.echo(text);
        line.loop.run_for(kSilence + 2);
        Asked& next = line.calls.echo("next");
        assert_true(line.loop.run_until([&] { return next.answers == 1; }, 20));
        assert_int_equal(next.error, Error::kNone);
        assert_true(line.calls.await(200));
        assert_int_equal(line.times(text), 1);
    }
    assert_int_equal(line.server.accepted, 2);
    assert_int_equal(line.calls->counts().opened, 0);
}

// All events of one turn have the same time.
void test_the_connections_take_over_also_if_no_time_passes(void**) {
    Line line;
    const auto settle = [&] {
        for (unsigned i = 0; i < 20; i++) {
            line.loop.turn(false);
        }
    };
    for (unsigned round = 0; round < 6; round++) {
        const unsigned silent = 1 + round % 2;
        line.server.hold(silent);
        Asked& held = line.calls.echo("held");
        settle();
        line.loop.jump(kSilence + 5);
        settle();
        Asked& other = line.calls.echo("other");
        settle();
        assert_int_equal(other.answers, 1);
        line.loop.jump(kTimeout);
        settle();
        assert_int_equal(held.error, Error::kTimedOut);
        line.server.let_go(silent);
        settle();
    }
    assert_int_equal(line.server.accepted, 2);
    assert_int_equal(line.calls->counts().opened, 0);
}

void test_a_single_call_on_a_silent_connection_does_not_open_the_breaker(void**) {
    Line line;
    line.make_spare();
    assert_true(line.calls.await(200));
    line.server.let_go(1);
    line.loop.run_for(200);
    line.server.hold(1);
    line.server.hold(2);
    Asked& lone = line.calls.echo("lone");
    line.loop.run_for(kSilence / 2);
    line.server.let_go(1);
    assert_true(line.calls.await(200));
    assert_int_equal(lone.error, Error::kTimedOut);
    assert_true(line.calls->available());
}

void test_many_calls_on_a_silent_connection_do_not_open_the_breaker(void**) {
    Line line;
    line.server.hold(1);
    for (unsigned i = 0; i < 20; i++) {
        line.calls.echo(std::to_string(i));
    }
    assert_true(line.calls.await(300));
    assert_int_equal(line.calls.errors(Error::kTimedOut), 20);
    assert_true(line.calls->available());
    assert_int_equal(line.calls.ask_echo("next").error, Error::kNone);
}

void test_silence_on_both_connections_opens_the_breaker(void**) {
    for (const bool spare : {false, true}) {
        Line line;
        if (spare) {
            line.make_spare();
            line.server.let_go(1);
            line.loop.run_for(200);
        }
        line.server.hold(1);
        line.server.hold(2);
        const Asked& asked = line.calls.ask_echo("x");
        assert_int_equal(asked.error, Error::kTimedOut);
        assert_in_range(asked.took, kTimeout - 1, kTimeout + 20);
        assert_false(line.calls->available());
        line.server.let_go(1);
        line.server.let_go(2);
        assert_true(line.calls.await_open(false, 200));
        assert_string_equal(line.calls.ask_echo("again").reply.c_str(), "again");
    }
}

void test_a_silent_connection_is_nudged(void**) {
    Line line;
    line.server.hold(1);
    line.server.hold(2);
    line.calls.echo("held");
    line.loop.run_for(kSilence + 5);
    assert_int_equal(line.server.count("TIME"), 1);
    line.loop.run_for(kTimeout - kSilence - 10);
    assert_in_range(line.server.count("TIME"), 2, 3);
    assert_int_equal(line.times("held"), 1);
    assert_true(line.calls.await(200));
}

void test_a_call_waits_for_a_handshake_beside_a_silent_connection(void**) {
    for (const bool second : {false, true}) {
        Line line;
        line.server.hold(1);
        line.server.hold(2);
        line.calls.echo("held");
        assert_true(line.loop.run_until([&] { return line.server.accepted == 2; }, 60));
        Asked& next = line.calls.echo("next");
        line.loop.run_for(5);
        assert_int_equal(line.times("next"), 0);
        // The connection that answers first serves the call.
        line.server.let_go(second ? 2 : 1);
        assert_true(line.loop.run_until([&] { return next.answers == 1; }, 50));
        assert_string_equal(next.reply.c_str(), "next");
        assert_true(line.calls.await(200));
        line.server.let_go(1);
        line.loop.run_for(5);
        assert_int_equal(line.times("next"), 1);
        assert_int_equal(line.times("held"), 1);
    }
}

void test_an_idle_spare_is_closed_after_a_minute(void**) {
    Line line;
    line.make_spare();
    assert_true(line.calls.await(200));
    line.server.let_go(1);
    for (unsigned i = 0; i < 7; i++) {
        assert_int_equal(line.loop.attached, 2);
        line.loop.jump(10'000);
        line.calls.ask_echo("x");
    }
    assert_true(line.loop.run_until([&] { return line.loop.attached == 1; }, 50));
    assert_string_equal(line.calls.ask_echo("next").reply.c_str(), "next");
    line.loop.jump(100'000);
    assert_string_equal(line.calls.ask_echo("next").reply.c_str(), "next");
    assert_int_equal(line.server.accepted, 2);
}

void test_a_spare_is_closed_if_its_handshake_times_out(void**) {
    Line line;
    line.server.hold(1);
    line.server.hold(2);
    line.calls.echo("held");
    assert_true(line.loop.run_until([&] { return line.server.accepted == 2; }, 60));
    line.server.let_go(1);
    assert_true(line.calls.await(200));
    assert_true(line.loop.run_until([&] { return line.loop.attached == 1; }, 1200));
    assert_true(line.calls->available());
    assert_string_equal(line.calls.ask_echo("next").reply.c_str(), "next");
}

void test_a_refused_spare_affects_no_call(void**) {
    Line line;
    line.server.refuse();
    line.server.hold(1);
    Asked& held = line.calls.echo("held");
    line.loop.run_for(kSilence + 10);
    line.server.let_go(1);
    assert_true(line.calls.await(200));
    assert_int_equal(held.error, Error::kNone);
    assert_true(line.calls->available());
    assert_string_equal(line.calls.ask_echo("next").reply.c_str(), "next");
}

void test_a_client_may_be_deleted_with_both_connections_in_use(void**) {
    Line line;
    line.make_spare();
    line.server.hold(2);
    line.calls.echo("x");
    line.loop.run_for(2);
    line.calls.end();
    assert_int_equal(line.loop.attached, 0);
    line.loop.run_for(5);
    assert_int_equal(line.server.connections(), 0);
}

void test_the_other_connection_serves_after_a_loss(void**) {
    Line line;
    line.make_spare();
    assert_true(line.calls.await(200));
    line.server.let_go(1);
    line.loop.run_for(5);
    line.server.hang_up(2);
    assert_true(line.loop.run_until([&] { return line.loop.attached == 1; }));
    assert_string_equal(line.calls.ask_echo("next").reply.c_str(), "next");
    assert_int_equal(line.server.accepted, 2);
}

class Moving final : public Endpoint {
  public:
    explicit Moving(std::string path) : path_(std::move(path)) {}
    void set_owner(Owner* owner) override { owner_ = owner; }
    Target target() override { return {path_, 0}; }
    void suspect() override {}
    bool wants_primary() const override { return false; }
    void move(const std::string& path) {
        path_ = path;
        owner_->on_moved();
    }

  private:
    std::string path_;
    Owner* owner_ = nullptr;
};

void test_both_connections_move_with_the_server(void**) {
    TestLoop loop;
    FakeServer from(&loop);
    FakeServer to(&loop);
    from.answer = to.answer = answer_of;
    auto* target = new Moving(from.path());
    Calls calls(with_spare("unix"), &loop, std::unique_ptr<Endpoint>(target));
    calls.ask_echo("warm");
    from.hold(1);
    Asked& held = calls.echo("held");
    assert_true(loop.run_until([&] { return from.accepted == 2; }, 60));
    loop.run_for(5);
    target->move(to.path());
    assert_int_equal(held.error, Error::kClosed);
    loop.run_for(5);
    assert_int_equal(from.connections(), 0);
    assert_string_equal(calls.ask_echo("next").reply.c_str(), "next");
    assert_int_equal(to.accepted, 1);
}

void test_the_queue_to_a_slow_server_does_not_grow_on_either_connection(void**) {
    TestLoop loop;
    SlowServer slow(&loop);
    Settings settings = with_spare(slow.server.path());
    settings.timeout = 20;
    Calls calls(settings, &loop);
    slow.overload(&calls);
    assert_true(slow.server.connections() <= 2);
}

// The connection that is closed when the breaker closes has a call in flight, whose failure opens the breaker
// again.
void test_a_breaker_that_opens_again_while_it_closes_is_closed_later(void**) {
    constexpr Milliseconds kLong = 400;
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = answer_of;
    Settings settings = with_spare(server.path());
    settings.timeout = kLong;
    Calls calls(settings, &loop);
    assert_int_equal(calls.ask_echo("warm").error, Error::kNone);
    // The first connection is silent until a call leaves by the second, which is silent, too, and has not yet
    // answered.
    server.hold(1);
    calls.echo("first");
    assert_true(loop.run_until([&] { return server.accepted == 2 && server.count("SCRIPT") == 2; }, kLong));
    loop.run_for(2);
    server.hold(2);
    Asked& second = calls.echo("second");
    loop.run_for(2);
    server.let_go(1);
    loop.run_for(2);
    assert_int_equal(second.answers, 0);
    for (unsigned i = 0; i < Breaker::kFailures; i++) {
        calls->distrust(Error::kShape, "unreadable");
    }
    assert_false(calls->available());
    assert_true(loop.run_until([&] { return second.answers == 1; }, kLong / 4));
    assert_int_equal(second.error, Error::kClosed);
    assert_int_equal(calls->counts().opened, 2);
    assert_false(calls->available());
    assert_true(calls.await_open(false));
    assert_int_equal(calls.ask_echo("x").error, Error::kNone);
}

// Connections become silent at random, but never both at once. Each call is answered, or times out
// because it was sent on a silent one. No call reaches the server twice.
void test_no_call_is_sent_twice(void**) {
    for (unsigned seed = 0; seed < 20; seed++) {
        std::mt19937 chance(seed);
        Line line;
        line.make_spare();
        unsigned silent = 1;
        for (unsigned i = 0; i < 600; i++) {
            if (chance() % 40 == 0) {
                line.server.let_go(silent);
                line.loop.run_for(chance() % 3);
                silent = 3 - silent;
                line.server.hold(silent);
            }
            if (chance() % 3 == 0) {
                line.calls.echo("call" + std::to_string(i));
            }
            line.loop.run_for(1);
        }
        assert_true(line.calls.await(300));
        assert_int_equal(line.calls->counts().opened, 0);
        std::map<std::string, unsigned> seen;
        for (const Words& words : line.server.commands) {
            if (words[0] == "EVALSHA") {
                assert_int_equal(seen[words[3]]++, 0);
            }
        }
        assert_int_equal(line.server.accepted, 2);
    }
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_leave_by_a_second_connection_while_the_first_is_silent),
        cmocka_unit_test(test_delayed_replies_are_dropped),
        cmocka_unit_test(test_the_connections_take_over_from_each_other),
        cmocka_unit_test(test_the_connections_take_over_also_if_no_time_passes),
        cmocka_unit_test(test_a_single_call_on_a_silent_connection_does_not_open_the_breaker),
        cmocka_unit_test(test_many_calls_on_a_silent_connection_do_not_open_the_breaker),
        cmocka_unit_test(test_silence_on_both_connections_opens_the_breaker),
        cmocka_unit_test(test_a_silent_connection_is_nudged),
        cmocka_unit_test(test_a_call_waits_for_a_handshake_beside_a_silent_connection),
        cmocka_unit_test(test_an_idle_spare_is_closed_after_a_minute),
        cmocka_unit_test(test_a_spare_is_closed_if_its_handshake_times_out),
        cmocka_unit_test(test_a_refused_spare_affects_no_call),
        cmocka_unit_test(test_a_client_may_be_deleted_with_both_connections_in_use),
        cmocka_unit_test(test_the_other_connection_serves_after_a_loss),
        cmocka_unit_test(test_both_connections_move_with_the_server),
        cmocka_unit_test(test_the_queue_to_a_slow_server_does_not_grow_on_either_connection),
        cmocka_unit_test(test_a_breaker_that_opens_again_while_it_closes_is_closed_later),
        cmocka_unit_test(test_no_call_is_sent_twice),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
