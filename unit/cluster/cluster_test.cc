// The cluster: loading the slot map, sending calls to the right nodes, and following changes.
#include "cluster/cluster.h"

#include "fake_cluster.h"
#include "redis/real_server.h"

namespace rate_limit::redis {
namespace {

void test_no_node_is_asked_before_the_first_call(void**) {
    TestLoop loop;
    FakeNode node(&loop);
    node.map = array({node.range(0, 16383)});
    TestCluster cluster(&loop, {seed_of(node)});
    assert_true(cluster->sharded());
    loop.run_for(20);
    assert_int_equal(node.accepted, 0);
    const SlotAsked& asked = cluster.ask(7, "a");
    assert_int_equal(asked.error, Error::kNone);
    assert_string_equal(asked.reply.c_str(), "a");
    assert_int_equal(node.asked, 1);
    assert_int_equal(cluster->nodes(), 1);
    assert_int_equal(loop.lines.size(), 0);
}

void test_the_first_calls_wait_for_the_map_and_go_to_their_nodes(void**) {
    TestLoop loop;
    FakeNode left(&loop);
    FakeNode right(&loop);
    left.map = array({left.range(0, 8191), right.range(8192, 16383)});
    TestCluster cluster(&loop, {seed_of(left)});
    for (unsigned i = 0; i < 64; i++) {
        cluster.send(static_cast<HashSlot>(i * 256), std::to_string(i));
    }
    assert_true(cluster.await());
    for (const SlotAsked& asked : cluster.all()) {
        assert_int_equal(asked.error, Error::kNone);
        assert_string_equal(asked.reply.c_str(), std::to_string(asked.slot / 256).c_str());
    }
    assert_int_equal(left.calls.size(), 32);
    assert_int_equal(right.calls.size(), 32);
    assert_string_equal(left.calls[31].c_str(), "31");
    assert_string_equal(right.calls[0].c_str(), "32");
    assert_int_equal(left.asked + right.asked, 1);
}

// The connection for the map is closed.
void test_a_worker_keeps_one_connection_for_each_node(void**) {
    Pair pair;
    for (unsigned i = 0; i < 20; i++) {
        pair.cluster.send(kLeft);
        pair.cluster.send(kRight);
    }
    assert_true(pair.cluster.await());
    pair.loop.run_for(20);
    assert_int_equal(pair.left.connections(), 1);
    assert_int_equal(pair.right.connections(), 1);
    assert_int_equal(pair.asked(), 0);
}

void test_a_call_that_waits_for_the_map_keeps_its_deadline(void**) {
    TestLoop loop;
    FakeNode mute(&loop);
    mute.answers = false;
    TestCluster cluster(&loop, {seed_of(mute)}, cluster_settings(60));
    cluster.send(1);
    cluster.send(2);
    assert_true(cluster.await());
    for (const SlotAsked& asked : cluster.all()) {
        assert_int_equal(asked.error, Error::kTimedOut);
        assert_in_range(asked.took, 55, 150);
    }
    assert_false(cluster.available(1));
    mute.answers = true;
    mute.map = array({mute.range(0, 16383)});
    assert_true(cluster.await_available(1, true, 1200));
    assert_int_equal(cluster.ask(1).error, Error::kNone);
}

// The rest of the timeout is too short for the node to answer. That is not a failure of the node.
void test_a_call_that_waited_for_the_map_has_only_the_rest_of_its_timeout(void**) {
    TestLoop loop;
    FakeNode seed(&loop);
    FakeNode node(&loop);
    seed.answers = false;
    node.run = [](const Words&) { return ""; };
    TestCluster cluster(&loop, {seed_of(seed)}, cluster_settings(150));
    const SlotAsked& asked = cluster.send(1);
    assert_true(loop.run_until([&] { return seed.count("PING") == 1; }));
    loop.run_for(50);
    seed.answers = true;
    seed.map = array({node.range(0, 16383)});
    seed.say("+PONG\r\n");
    assert_true(cluster.await());
    assert_int_equal(node.calls.size(), 1);
    assert_int_equal(asked.error, Error::kTimedOut);
    assert_in_range(asked.took, 145, 240);
    assert_true(cluster.available(1));
}

void test_calls_for_slots_without_a_node_do_not_affect_other_calls(void**) {
    TestLoop loop;
    FakeNode node(&loop);
    node.map = array({node.range(100, 199)});
    TestCluster cluster(&loop, {seed_of(node)});
    for (const HashSlot slot : {50, 100, 300, 150, 16383, 199}) {
        cluster.send(slot);
    }
    assert_true(cluster.await());
    for (const SlotAsked& asked : cluster.all()) {
        const bool owned = asked.slot >= 100 && asked.slot < 200;
        assert_int_equal(asked.error, owned ? Error::kNone : Error::kUnavailable);
    }
    assert_null(cluster->client_of(99));
    assert_null(cluster->client_of(200));
    assert_true(cluster.available(100));
}

void test_the_map_is_loaded_until_each_slot_has_a_node(void**) {
    TestLoop loop;
    FakeNode node(&loop);
    node.map = array({node.range(0, 8191)});
    TestCluster cluster(&loop, {seed_of(node)});
    assert_int_equal(cluster.ask(kLeft).error, Error::kNone);
    assert_null(cluster->client_of(kRight));
    loop.run_for(500);
    assert_in_range(node.asked, 3, 4);
    node.map = array({node.range(0, 16383)});
    assert_true(cluster.await_available(kRight, true, 400));
    assert_int_equal(cluster.ask(kRight).error, Error::kNone);
    const unsigned asked = node.asked;
    loop.run_for(500);
    assert_int_equal(node.asked, asked);
}

void test_nodes_may_have_ipv6_addresses(void**) {
    TestLoop loop;
    FakeNode left(&loop, "::1");
    FakeNode right(&loop, "::1");
    left.map = array({left.range(0, 8191), right.range(8192, 16383)});
    TestCluster cluster(&loop, {seed_of(left)});
    assert_int_equal(cluster.ask(kLeft).error, Error::kNone);
    assert_int_equal(cluster.ask(kRight).error, Error::kNone);
    left.run = [&](const Words&) { return right.moved(kLeft); };
    assert_int_equal(cluster.ask(kLeft).error, Error::kNone);
    assert_int_equal(right.calls.size(), 2);
    assert_int_equal(cluster->nodes(), 2);
}

// The system takes 127.1 for a name, and resolves it without a name server.
constexpr char kName[] = "127.1";

void test_nodes_may_have_names(void**) {
    TestLoop loop;
    FakeNode left(&loop);
    FakeNode right(&loop);
    left.map = array({range(0, 8191, kName, left.port()), range(8192, 16383, kName, right.port())});
    Settings settings = cluster_settings(1000);
    settings.connect_timeout = 5000;  // when a client would retry without the lookup
    TestCluster cluster(&loop, {seed_of(left)}, settings);
    cluster.send(kLeft);
    cluster.send(kRight);
    assert_true(cluster.await());
    for (const SlotAsked& asked : cluster.all()) {
        assert_int_equal(asked.error, Error::kNone);
    }
    assert_int_equal(cluster->nodes(), 2);
    assert_int_equal(loop.lines.size(), 0);
    left.run = [&](const Words&) {
        return "-MOVED 1 " + std::string(kName) + ":" + std::to_string(right.port()) + "\r\n";
    };
    assert_int_equal(cluster.ask(1).error, Error::kNone);
    assert_int_equal(right.calls.size(), 2);
    assert_int_equal(cluster->nodes(), 2);
}

void test_nodes_with_names_are_asked_for_the_map(void**) {
    TestLoop loop;
    FakeNode seed(&loop);
    FakeNode node(&loop);
    seed.map = node.map = array({range(0, 16383, kName, node.port())});
    TestCluster cluster(&loop, {seed_of(seed)});
    assert_int_equal(cluster.ask(1).error, Error::kNone);
    seed.refuse();
    node.run = [&](const Words& command) {
        const std::string moved =
            "-MOVED 1 " + std::string(kName) + ":" + std::to_string(node.port()) + "\r\n";
        return node.calls.size() == 2 ? moved : echo_back(command);
    };
    assert_int_equal(cluster.ask(1).error, Error::kNone);
    assert_true(loop.run_until([&] { return node.asked == 1; }));
    assert_int_equal(seed.asked, 1);
}

void test_an_unknown_name_affects_only_the_slots_of_its_node(void**) {
    TestLoop loop;
    FakeNode node(&loop);
    node.map = array({node.range(0, 8191), range(8192, 16383, std::string(64, 'x'), 6379)});
    TestCluster cluster(&loop, {seed_of(node)}, cluster_settings(3000));
    cluster.send(kLeft);
    const SlotAsked& asked = cluster.send(kRight);
    assert_true(cluster.await());
    assert_int_equal(asked.error, Error::kUnresolved);
    assert_false(cluster.available(kRight));
    assert_int_equal(cluster.ask(kLeft).error, Error::kNone);
}

void test_a_lost_node_affects_only_its_own_slots(void**) {
    Pair pair;
    pair.left.refuse();
    pair.left.hang_up();
    assert_true(pair.loop.run_until([&] { return pair.loop.attached == 1; }));
    const SlotAsked& lost = pair.cluster.send(kLeft);
    const SlotAsked& kept = pair.cluster.send(kRight);
    assert_true(pair.cluster.await());
    assert_int_equal(lost.error, Error::kRefused);
    assert_int_equal(kept.error, Error::kNone);
    for (unsigned i = 0; i < 20; i++) {
        assert_false(pair.cluster.available(kLeft));
        assert_int_equal(pair.cluster.ask(kRight).error, Error::kNone);
        pair.loop.run_for(10);
    }
    // Another node gets its slots.
    pair.right.map = array({pair.right.range(0, 16383)});
    assert_true(pair.cluster.await_available(kLeft, true, 450));
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
    assert_int_equal(pair.cluster->nodes(), 1);
}

void test_a_node_that_hangs_affects_only_its_own_slots(void**) {
    Pair pair(100);
    pair.left.answers = false;
    const SlotAsked& lost = pair.cluster.send(kLeft);
    const SlotAsked& kept = pair.cluster.send(kRight);
    assert_true(pair.cluster.await());
    assert_int_equal(lost.error, Error::kTimedOut);
    assert_int_equal(kept.error, Error::kNone);
    assert_false(pair.cluster.available(kLeft));
    pair.right.map = array({pair.right.range(0, 16383)});
    assert_true(pair.cluster.await_available(kLeft, true, 1000));
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
    assert_int_equal(pair.cluster.ask(kRight).error, Error::kNone);
}

void test_a_node_that_recovers_is_used_again(void**) {
    Pair pair;
    pair.left.refuse();
    pair.left.hang_up();
    assert_true(pair.loop.run_until([&] { return pair.loop.attached == 1; }));
    assert_int_not_equal(pair.cluster.ask(kLeft).error, Error::kNone);
    pair.left.listen();
    assert_true(pair.cluster.await_available(kLeft, true, 1500));
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
}

void test_nodes_without_slots_are_dropped(void**) {
    Pair pair;
    pair.right.map = pair.left.map = array({pair.right.range(0, 16383)});
    pair.left.run = [&](const Words&) { return pair.right.moved(kLeft); };
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
    assert_true(pair.loop.run_until([&] { return pair.left.connections() == 0; }));
    assert_int_equal(pair.cluster->nodes(), 1);
    pair.loop.run_for(300);
    assert_int_equal(pair.left.connections(), 0);
}

// The node may still answer, or not.
void test_nodes_with_unanswered_calls_are_not_dropped(void**) {
    for (const bool answers : {true, false}) {
        Pair pair(300);
        pair.left.run = [](const Words&) { return ""; };
        const SlotAsked& waiting = pair.cluster.send(kLeft, "slow");
        assert_true(pair.loop.run_until([&] { return pair.left.calls.size() == 1; }));
        pair.right.map = pair.left.map = array({pair.right.range(0, 16383)});
        pair.right.run = [&](const Words& command) {
            return pair.right.calls.size() == 1 ? pair.right.moved(kRight) : echo_back(command);
        };
        const SlotAsked& moved = pair.cluster.send(kRight);
        assert_true(pair.loop.run_until([&] { return pair.cluster->nodes() == 1; }));
        assert_int_equal(moved.error, Error::kNone);
        pair.loop.run_for(20);
        assert_int_equal(pair.left.connections(), 1);
        assert_int_equal(waiting.answers, 0);
        if (answers) {
            pair.left.say(bulk("at last"));
        }
        assert_true(pair.cluster.await());
        assert_int_equal(waiting.error, answers ? Error::kNone : Error::kTimedOut);
        // The node is dropped when the next map is loaded, which its failure may cause.
        pair.right.calls.clear();
        pair.loop.jump(200);
        assert_int_equal(pair.cluster.ask(kRight).error, Error::kNone);
        assert_true(pair.loop.run_until([&] { return pair.left.connections() == 0; }));
    }
}

void test_probes_write_a_key_of_the_node(void**) {
    for (const HashSlot border : {1, 8192, 16383}) {
        Pair pair(60);
        pair.share(border);
        pair.left.run = [&](const Words&) { return pair.right.moved(kLeft); };
        pair.cluster.ask(kLeft);
        pair.loop.run_for(50);
        pair.left.run = [](const Words&) { return "-OOM no\r\n"; };
        for (unsigned i = 0; i < 5; i++) {
            assert_int_equal(pair.cluster.ask(0).error, Error::kOutOfMemory);
        }
        assert_false(pair.cluster.available(0));
        pair.left.commands.clear();
        assert_true(pair.loop.run_until([&] { return pair.left.count("SET") == 1; }));
        for (const Words& command : pair.left.commands) {
            if (command[0] == "SET") {
                assert_in_range(hash_slot_of(command[1]), 0, border - 1);
                assert_int_equal(command[1].find("probe{"), 0);
            }
        }
    }
}

// Deletes the cluster after any number of turns: while the map is loaded, or calls wait for the map, nodes or
// replies.
void test_a_cluster_may_be_deleted_at_any_time(void**) {
    for (unsigned turns = 0; turns < 24; turns++) {
        TestLoop loop;
        FakeNode left(&loop);
        FakeNode right(&loop);
        left.map = array({left.range(0, 8191), right.range(8192, 12000), range(12001, 16000, "127.1", 1),
                          range(16001, 16383, "127.0.0.1", 1)});
        left.run = [&](const Words& command) { return command[3] == "0" ? right.ask(0) : right.moved(1); };
        right.run = [](const Words& command) { return command[3] == "0" ? "" : echo_back(command); };
        TestCluster cluster(&loop, {seed_of(left)});
        for (const HashSlot slot : {0, 1, 2, 9000, 13000, 16383}) {
            cluster.send(slot, std::to_string(slot));
        }
        for (unsigned i = 0; i < turns; i++) {
            loop.turn();
        }
        cluster.end();
        loop.run_for(1);
        for (const SlotAsked& asked : cluster.all()) {
            assert_int_equal(asked.answers, 1);
        }
        assert_int_equal(loop.attached, 0);
    }
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_no_node_is_asked_before_the_first_call),
        cmocka_unit_test(test_the_first_calls_wait_for_the_map_and_go_to_their_nodes),
        cmocka_unit_test(test_a_worker_keeps_one_connection_for_each_node),
        cmocka_unit_test(test_a_call_that_waits_for_the_map_keeps_its_deadline),
        cmocka_unit_test(test_a_call_that_waited_for_the_map_has_only_the_rest_of_its_timeout),
        cmocka_unit_test(test_calls_for_slots_without_a_node_do_not_affect_other_calls),
        cmocka_unit_test(test_the_map_is_loaded_until_each_slot_has_a_node),
        cmocka_unit_test(test_nodes_may_have_ipv6_addresses),
        cmocka_unit_test(test_nodes_may_have_names),
        cmocka_unit_test(test_nodes_with_names_are_asked_for_the_map),
        cmocka_unit_test(test_an_unknown_name_affects_only_the_slots_of_its_node),
        cmocka_unit_test(test_a_lost_node_affects_only_its_own_slots),
        cmocka_unit_test(test_a_node_that_hangs_affects_only_its_own_slots),
        cmocka_unit_test(test_a_node_that_recovers_is_used_again),
        cmocka_unit_test(test_nodes_without_slots_are_dropped),
        cmocka_unit_test(test_nodes_with_unanswered_calls_are_not_dropped),
        cmocka_unit_test(test_probes_write_a_key_of_the_node),
        cmocka_unit_test(test_a_cluster_may_be_deleted_at_any_time),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
