// Each log line has the name of the Redis, the address, the event and the consequence for
// requests; and never a password.
#include "cluster/fake_cluster.h"
#include "cluster/sentinels.h"

namespace rate_limit::redis {
namespace {

const Consequence kConsequence = {"zone a: no connection", "zone a: a call failed", "zone a: enforced"};

Settings speaking(Settings settings) {
    settings.consequence = &kConsequence;
    return settings;
}

Settings at(const std::string& host, std::uint16_t port) {
    Settings settings = speaking(settings_for(""));
    settings.address.host = host;
    settings.address.port = port;
    return settings;
}

std::string place_of(const FakeServer& server) { return "127.0.0.1:" + std::to_string(server.port()); }

void assert_line(const TestLoop& loop, std::size_t number, const std::string& text) {
    assert_true(loop.lines.size() > number);
    assert_string_equal(loop.lines[number].text.c_str(), text.c_str());
}

void test_a_refused_connection_names_the_address_and_the_consequence(void**) {
    for (const char* host : {"127.0.0.1", "::1"}) {
        TestLoop loop;
        Calls calls(at(host, 1), &loop, {host});
        assert_int_equal(calls.ask_echo("x").error, Error::kRefused);
        assert_line(loop, 0,
                    "redis \"fleet\" " + print_target(host, 1) +
                        ": refused (Connection refused); zone a: no connection");
    }
}

void test_the_log_has_the_address_of_the_last_attempt(void**) {
    TestLoop loop;
    Calls calls(at("redis.invalid", 1), &loop, {"127.0.0.1", "127.0.0.2"});
    calls.ask_echo("x");
    assert_line(loop, 0, "redis \"fleet\" 127.0.0.1:1: refused (Connection refused); zone a: no connection");
    loop.jump(20'000);
    assert_true(loop.run_until([&] { return loop.said("\"fleet\" 127.0.0.2:1: refused (") == 1; }));
}

void test_the_log_has_the_name_of_a_host_without_an_address(void**) {
    TestLoop loop;
    Calls calls(at("redis.invalid", 7), &loop);
    assert_int_equal(calls.ask_echo("x").error, Error::kUnresolved);
    assert_line(
        loop, 0,
        "redis \"fleet\" redis.invalid:7: unresolved (the host has no address); zone a: no connection");
}

void test_a_failed_call_and_the_recovery_name_the_socket_and_the_consequence(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words&) { return "-OOM full\r\n"; };
    Calls calls(speaking(settings_for(server.path())), &loop);
    for (unsigned i = 0; i < 5; i++) {
        calls.ask_echo("x");
    }
    assert_true(calls.await_open(false));
    assert_int_equal(loop.lines.size(), 2);
    assert_line(loop, 0, "redis \"fleet\" unix:" + server.path() + ": oom (OOM full); zone a: a call failed");
    assert_line(loop, 1, "redis \"fleet\" unix:" + server.path() + ": answers again; zone a: enforced");
}

void test_a_long_reply_is_truncated_and_the_consequence_is_not(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words&) { return "-ERR " + std::string(100'000, 'x') + "\r\n"; };
    Calls calls(speaking(settings_for(server.path())), &loop);
    calls.ask_echo("x");
    assert_line(loop, 0,
                "redis \"fleet\" unix:" + server.path() + ": other (ERR " + std::string(396, 'x') +
                    "...); zone a: a call failed");
}

void test_an_error_without_an_effect_on_requests_is_logged_so(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Calls calls(speaking(settings_for(server.path())), &loop);
    calls.ask_echo("x");
    server.say("+OK\r\n");
    assert_true(loop.run_until([&] { return loop.lines.size() == 1; }));
    assert_line(loop, 0,
                "redis \"fleet\" unix:" + server.path() +
                    ": protocol (the server sent a reply that no command waits for); no request is affected");
}

void test_the_log_says_what_a_silent_server_has_not_answered(void**) {
    for (const bool ready : {true, false}) {
        TestLoop loop;
        FakeServer server(&loop);
        Calls calls(speaking(settings_for(server.path(), 20)), &loop);
        if (ready) {
            server.answer = echo_back;
            calls.ask_echo("warm");
        }
        server.answer = server.handshake = FakeServer::Answer();
        calls.ask_echo("x");
        assert_line(loop, 0,
                    "redis \"fleet\" unix:" + server.path() + ": timeout (" +
                        (ready ? "no answer" : "connected, but the first command was not answered") +
                        "); zone a: a call failed");
    }
}

void test_clients_of_one_redis_log_a_failure_and_its_end_once(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.refuse();
    Journal journal;
    Settings settings = speaking(settings_for(server.path()));
    settings.journal = &journal;
    Settings background = settings;
    background.quiet = true;
    Calls first(background, &loop);
    Calls second(settings, &loop);
    first.ask_echo("x");
    second.ask_echo("x");
    assert_int_equal(loop.lines.size(), 1);
    assert_int_equal(loop.said(": refused ("), 1);
    server.listen();
    assert_true(first.await_open(false) && second.await_open(false));
    assert_int_equal(loop.lines.size(), 2);
    assert_int_equal(loop.said(": answers again; zone a: enforced"), 1);
}

void test_a_quiet_client_logs_only_failures_to_connect(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.handshake = [](const Words& command) {
        return command[0] == "PING" ? std::string("-NOAUTH Authentication required.\r\n")
                                    : FakeServer::healthy(command);
    };
    server.answer = [](const Words&) { return "-NOPERM no\r\n"; };
    Settings settings = speaking(settings_for(server.path()));
    settings.quiet = true;
    Calls calls(settings, &loop);
    assert_int_equal(calls.ask_echo("x").error, Error::kDenied);
    assert_line(loop, 0,
                "redis \"fleet\" unix:" + server.path() +
                    ": auth (NOAUTH Authentication required.); zone a: no connection");
    server.handshake = FakeServer::healthy;
    assert_true(calls.await_open(false));
    loop.jump(20'000);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(calls.ask_echo("x").error, Error::kDenied);
    }
    assert_true(calls.await_open(false));
    assert_int_equal(loop.lines.size(), 2);
    assert_line(loop, 1, "redis \"fleet\" unix:" + server.path() + ": answers again; zone a: enforced");
}

void test_background_failures_do_not_suppress_those_of_requests(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = [](const Words&) { return "what?\r\n"; };
    Journal journal;
    Settings settings = speaking(settings_for(server.path()));
    settings.journal = &journal;
    const Consequence harmless = {"zone a: no connection", "no request waits", "zone a: enforced"};
    Settings background = settings;
    background.background = true;
    background.consequence = &harmless;
    Calls first(background, &loop);
    Calls second(settings, &loop);
    first.ask_echo("x");
    second.ask_echo("x");
    second.ask_echo("x");
    loop.run_for(5);
    assert_int_equal(loop.lines.size(), 2);
    assert_int_equal(loop.said("; no request waits"), 1);
    assert_int_equal(loop.said("; zone a: a call failed"), 1);
}

void test_each_node_of_a_cluster_has_its_own_lines(void**) {
    TestLoop loop;
    FakeNode left(&loop);
    FakeNode right(&loop);
    left.map = right.map = array({left.range(0, 8191), right.range(8192, 16383)});
    TestCluster cluster(&loop, {seed_of(left)}, speaking(cluster_settings()));
    left.run = right.run = [](const Words&) { return std::string("-OOM full\r\n"); };
    cluster.ask(kLeft);
    cluster.ask(kRight);
    assert_int_equal(loop.lines.size(), 2);
    assert_line(loop, 0, "redis \"fleet\" " + left.target() + ": oom (OOM full); zone a: a call failed");
    assert_line(loop, 1, "redis \"fleet\" " + right.target() + ": oom (OOM full); zone a: a call failed");
}

void test_a_map_that_cannot_be_loaded_names_the_last_node(void**) {
    TestLoop loop;
    FakeNode node(&loop);
    node.map = "-ERR no cluster\r\n";
    Journal journal;
    Settings settings = speaking(cluster_settings());
    settings.journal = &journal;
    TestCluster cluster(&loop, {seed_of(node)}, settings);
    cluster.ask(1);
    assert_int_equal(loop.lines.size(), 1);
    assert_line(loop, 0,
                "redis \"fleet\" " + node.target() +
                    ": other (no node returned the slot map: ERR no cluster); zone a: no connection");
}

struct NoOwner : Endpoint::Owner {
    void on_moved() override {}
};

void test_the_log_names_the_sentinel_and_the_known_primary(void**) {
    TestLoop loop;
    loop.real = true;
    FakeServer sentinel(&loop, "127.0.0.1");
    sentinel.answer = [](const Words& command) {
        return command[0] == "SENTINEL" ? "*2\r\n" + bulk("127.0.0.1") + bulk("7001") : std::string();
    };
    Settings settings;
    settings.name = "fleet";
    settings.consequence = &kConsequence;
    settings.connect_timeout = 100;
    NoOwner owner;
    const std::string where = "redis \"fleet\" Sentinel " + place_of(sentinel);
    sentinel.refuse();
    const std::unique_ptr<Sentinels> sentinels(
        new Sentinels(settings, {{"sentinel", sentinel.port(), {"127.0.0.1"}}}, "limits", &loop));
    sentinels->set_owner(&owner);
    sentinels->target();
    assert_true(loop.run_until([&] { return loop.lines.size() == 1; }));
    assert_line(loop, 0, where + ": refused (Connection refused); zone a: no connection");
    sentinel.listen();
    assert_true(loop.run_until([&] { return sentinels->target().port == 7001; }));
    loop.jump(20'000);
    sentinel.refuse();
    sentinel.hang_up();
    assert_true(loop.run_until([&] { return loop.said(": refused (") == 2; }));
    assert_int_equal(loop.said(where + ": refused (Connection refused)"), 2);
    assert_int_equal(loop.said("; requests are still decided at 127.0.0.1:7001"), loop.lines.size() - 1);
}

// Redis without AUTH, or a proxy, repeats arguments in the error. Redis truncates long ones.
void test_no_reply_to_auth_puts_a_password_into_the_log(void**) {
    const std::string secret = "s3same-" + std::string(200, 'q');
    const struct {
        std::string answer;
        const char* shown;
    } cases[] = {
        {"-ERR unknown command 'AUTH', with args beginning with: '" + secret.substr(0, 128) + "' ",
         "other (ERR unknown command: the server does not know AUTH)"},
        {"-ERR unknown command `AUTH`, with args beginning with: `app`, `" + secret + "`, ",
         "other (ERR unknown command: the server does not know AUTH)"},
        {"-WRONGPASS " + secret, "auth (WRONGPASS: the user or the password is wrong)"},
        {"-" + secret,
         "other (AUTH was answered by an error that is not logged, as it may repeat the password)"},
        {"-ERR Protocol error: " + secret,
         "other (AUTH was answered by an error that is not logged, as it may repeat the password)"},
        {"-NOAUTH " + secret, "auth (NOAUTH Authentication required)"},
    };
    for (const auto& each : cases) {
        TestLoop loop;
        FakeServer server(&loop);
        server.handshake = [&](const Words& command) {
            return command[0] == "AUTH" ? each.answer + "\r\n" : std::string();
        };
        Settings settings = speaking(settings_for(server.path()));
        settings.address.user = "app";
        settings.address.password = secret;
        Calls calls(settings, &loop);
        calls.ask_echo("x");
        assert_int_equal(loop.said("s3same"), 0);
        assert_int_equal(loop.said("qqqq"), 0);
        assert_line(loop, 0,
                    "redis \"fleet\" unix:" + server.path() + ": " + each.shown + "; zone a: no connection");
    }
}

void test_a_port_that_requires_tls_is_recognized(void**) {
    const struct {
        const char* says;
        const char* line;
    } cases[] = {
        {"\x15\x03\x03", ": protocol (the server answered with a TLS alert: this port requires rediss://)"},
        {"",
         ": closed (the server closed the connection before it answered: does this port require rediss://?)"},
    };
    for (const auto& each : cases) {
        TestLoop loop;
        loop.real = true;
        FakeServer server(&loop, "127.0.0.1");
        server.answers = false;
        Calls calls(at("127.0.0.1", server.port()), &loop, {"127.0.0.1"});
        calls.echo("x");
        assert_true(loop.run_until([&] { return server.count("PING") == 1; }));
        server.say(each.says);
        loop.turn();
        server.hang_up();
        assert_true(calls.await());
        assert_line(loop, 0, "redis \"fleet\" " + place_of(server) + each.line + "; zone a: no connection");
    }
}

void test_a_journal_limits_each_node_and_is_bounded(void**) {
    Journal journal;
    std::uint64_t left_out = 0;
    Milliseconds now = 1000;
    for (std::size_t i = 0; i < Journal::kMostNodes; i++) {
        const std::string node = "node" + std::to_string(i);
        assert_true(journal.may_complain(node, Journal::kRequests, Error::kRefused, now, &left_out));
        assert_false(journal.may_complain(node, Journal::kRequests, Error::kRefused, now, &left_out));
        assert_true(journal.may_complain(node, Journal::kRequests, Error::kOther, now, &left_out));
        assert_false(journal.may_complain(node, Journal::kOther, Error::kRefused, now, &left_out));
        assert_true(journal.may_complain(node, Journal::kOther, Error::kTls, now, &left_out));
        assert_true(journal.may_complain(node, Journal::kRequests, Error::kTls, now, &left_out));
        assert_true(journal.may_report_recovery(node, now));
        assert_false(journal.may_report_recovery(node, now));
    }
    assert_false(journal.may_complain("another", Journal::kRequests, Error::kRefused, now, &left_out));
    now += Journal::kEvery;
    assert_true(journal.may_complain("another", Journal::kRequests, Error::kRefused, now, &left_out));
    assert_int_equal(left_out, 0);
    assert_true(journal.may_complain("node9", Journal::kRequests, Error::kRefused, now, &left_out));
    assert_int_equal(left_out, 1);
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refused_connection_names_the_address_and_the_consequence),
        cmocka_unit_test(test_the_log_has_the_address_of_the_last_attempt),
        cmocka_unit_test(test_the_log_has_the_name_of_a_host_without_an_address),
        cmocka_unit_test(test_a_failed_call_and_the_recovery_name_the_socket_and_the_consequence),
        cmocka_unit_test(test_a_long_reply_is_truncated_and_the_consequence_is_not),
        cmocka_unit_test(test_an_error_without_an_effect_on_requests_is_logged_so),
        cmocka_unit_test(test_the_log_says_what_a_silent_server_has_not_answered),
        cmocka_unit_test(test_clients_of_one_redis_log_a_failure_and_its_end_once),
        cmocka_unit_test(test_a_quiet_client_logs_only_failures_to_connect),
        cmocka_unit_test(test_background_failures_do_not_suppress_those_of_requests),
        cmocka_unit_test(test_each_node_of_a_cluster_has_its_own_lines),
        cmocka_unit_test(test_a_map_that_cannot_be_loaded_names_the_last_node),
        cmocka_unit_test(test_the_log_names_the_sentinel_and_the_known_primary),
        cmocka_unit_test(test_no_reply_to_auth_puts_a_password_into_the_log),
        cmocka_unit_test(test_a_port_that_requires_tls_is_recognized),
        cmocka_unit_test(test_a_journal_limits_each_node_and_is_bounded),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
