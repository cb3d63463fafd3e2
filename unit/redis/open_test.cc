// Connecting before the first call, so that no call waits for a handshake.
#include <list>

#include "cluster/fake_cluster.h"
#include "cluster/sentinels.h"

namespace rate_limit::redis {
namespace {

void test_the_handshake_completes_before_the_first_call(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    Calls calls(settings_for(server.path()), &loop);
    calls->open();
    assert_true(calls->opening());
    assert_true(loop.run_until([&] { return !calls->opening(); }));
    assert_true(calls->connected());
    assert_int_equal(server.count("SCRIPT"), 1);
    server.commands.clear();
    assert_string_equal(calls.ask_echo("x").reply.c_str(), "x");
    assert_int_equal(server.commands.size(), 1);
    assert_int_equal(server.accepted, 1);
}

void test_a_call_during_the_handshake_uses_the_same_connection(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answer = echo_back;
    server.accepts = false;
    Calls calls(settings_for(server.path()), &loop);
    calls->open();
    loop.run_for(5);
    calls.echo("x");
    server.accepts = true;
    assert_true(calls.await());
    assert_string_equal(calls.all()[0].reply.c_str(), "x");
    assert_int_equal(server.accepted, 1);
}

void test_an_unreachable_server_is_not_a_failure_before_the_first_call(void**) {
    TestLoop loop;
    Calls calls(settings_for(Folder::own().file("nowhere")), &loop);
    calls->open();
    assert_true(loop.run_until([&] { return !calls->opening(); }));
    loop.run_for(2000);
    assert_true(calls->available());
    assert_int_equal(loop.lines.size(), 0);
    assert_int_equal(calls.ask_echo("x").error, Error::kRefused);
    assert_int_equal(loop.said("refused"), 1);
    assert_false(calls->available());
}

void test_the_first_call_fails_by_the_error_of_the_handshake(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.handshake = [](const Words&) { return "-NOAUTH Authentication required.\r\n"; };
    Calls calls(settings_for(server.path()), &loop);
    calls->open();
    assert_true(loop.run_until([&] { return !calls->opening(); }));
    assert_int_equal(loop.attached, 0);
    assert_int_equal(loop.lines.size(), 0);
    assert_int_equal(calls.ask_echo("x").error, Error::kDenied);
    assert_int_equal(server.accepted, 2);
}

void test_a_call_that_waits_fails_by_the_error_of_the_connection(void**) {
    TestLoop loop;
    FakeServer server(&loop);
    server.answers = false;
    Calls calls(settings_for(server.path()), &loop);
    calls->open();
    assert_true(loop.run_until([&] { return server.connections() == 1; }));
    calls.echo("x");
    server.hang_up();
    assert_true(calls.await(500));
    assert_int_equal(calls.all()[0].error, Error::kClosed);
    assert_false(calls->available());
}

void test_open_connects_to_the_primary_of_sentinels(void**) {
    TestLoop loop;
    FakeServer server(&loop, "127.0.0.1");
    FakeServer sentinel(&loop);
    server.answer = echo_back;
    sentinel.answer = [&](const Words& command) {
        return command[0] == "SENTINEL" ? "*2\r\n" + bulk("127.0.0.1") + bulk(std::to_string(server.port()))
                                        : "*3\r\n" + bulk("subscribe") + bulk(command[1]) + ":1\r\n";
    };
    Settings speaking;
    speaking.name = "fleet";
    speaking.address.path = "unix";
    auto* sentinels = new Sentinels(speaking, {{"sentinel", 26379, {sentinel.path()}}}, "limits", &loop);
    Calls calls(settings_for(""), &loop, std::unique_ptr<Endpoint>(sentinels));
    calls->open();
    assert_true(loop.run_until([&] { return !calls->opening(); }));
    assert_true(calls->connected());
    assert_int_equal(server.accepted, 1);
}

void test_open_connects_to_each_node_with_slots(void**) {
    TestLoop loop;
    FakeNode left(&loop);
    FakeNode right(&loop);
    left.map = array({left.range(0, 8191), right.range(8192, 16383)});
    TestCluster cluster(&loop, {seed_of(left)});
    cluster->open();
    assert_true(cluster->opening());
    assert_true(loop.run_until([&] { return !cluster->opening(); }));
    assert_true(cluster->client_of(kLeft)->connected());
    assert_true(cluster->client_of(kRight)->connected());
    right.commands.clear();
    assert_int_equal(cluster.ask(kRight).error, Error::kNone);
    assert_int_equal(right.commands.size(), 1);
}

void test_open_connects_to_a_limited_number_of_nodes(void**) {
    TestLoop loop;
    std::list<FakeNode> nodes;
    std::vector<std::string> ranges;
    for (unsigned i = 0; i < 40; i++) {
        nodes.emplace_back(&loop);
        ranges.push_back(nodes.back().range(i * 400, i < 39 ? i * 400 + 399 : 16383));
    }
    nodes.front().map = array(ranges);
    TestCluster cluster(&loop, {seed_of(nodes.front())});
    cluster->open();
    assert_true(loop.run_until([&] { return !cluster->opening(); }));
    assert_int_equal(cluster->nodes(), 40);
    loop.run_for(20);
    assert_int_equal(loop.attached, 32);
    assert_int_equal(cluster.ask(16383).error, Error::kNone);
}

void test_opening_ends_if_no_node_answers(void**) {
    TestLoop loop;
    TestCluster cluster(&loop, {{"127.0.0.1", 1, {"127.0.0.1"}}});
    cluster->open();
    assert_true(loop.run_until([&] { return !cluster->opening(); }, 500));
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_handshake_completes_before_the_first_call),
        cmocka_unit_test(test_a_call_during_the_handshake_uses_the_same_connection),
        cmocka_unit_test(test_an_unreachable_server_is_not_a_failure_before_the_first_call),
        cmocka_unit_test(test_the_first_call_fails_by_the_error_of_the_handshake),
        cmocka_unit_test(test_a_call_that_waits_fails_by_the_error_of_the_connection),
        cmocka_unit_test(test_open_connects_to_the_primary_of_sentinels),
        cmocka_unit_test(test_open_connects_to_each_node_with_slots),
        cmocka_unit_test(test_open_connects_to_a_limited_number_of_nodes),
        cmocka_unit_test(test_opening_ends_if_no_node_answers),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
