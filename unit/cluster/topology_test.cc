// Loading the slot map from any seed that answers, and ignoring invalid parts.
#include "cluster/topology.h"

#include "fake_cluster.h"

namespace rate_limit::redis {
namespace {

void test_a_seed_that_fails_is_skipped(void**) {
    const std::string bad[] = {
        "-ERR This instance has cluster support disabled\r\n",
        "-NOAUTH Authentication required.\r\n",
        "-NOPERM this user has no permissions to run the 'cluster|slots' command\r\n",
        "-CLUSTERDOWN The cluster is down\r\n",
        "-\r\n",
        "*0\r\n",
        "*-1\r\n",
        "$-1\r\n",
        ":1\r\n",
        "+OK\r\n",
        "$3\r\nabc\r\n",
        "*1\r\n*0\r\n",
        "*1\r\n*-1\r\n",
        "*16385\r\n",
        "*2147483647\r\n",
        "!\r\n",
    };
    for (const std::string& reply : bad) {
        TestLoop loop;
        FakeNode wrong(&loop);
        FakeNode absent(&loop);
        FakeNode good(&loop);
        wrong.map = reply;
        absent.refuse();
        good.map = array({good.range(0, 16383)});
        TestCluster cluster(&loop, {seed_of(wrong), seed_of(absent), seed_of(good)});
        const SlotAsked& asked = cluster.ask(1);
        if (asked.error != Error::kNone || asked.took > 150) {
            fail_msg("%s: %s", reply.c_str(), error_name(asked.error));
        }
        assert_int_equal(wrong.asked, 1);
        assert_int_equal(loop.lines.size(), 0);
    }
}

void test_a_silent_seed_is_skipped_after_connect_timeout(void**) {
    for (unsigned stage = 0; stage < 3; stage++) {
        TestLoop loop;
        FakeNode mute(&loop);
        FakeNode good(&loop);
        mute.accepts = stage != 0;
        mute.answers = stage != 1;
        good.map = array({good.range(0, 16383)});
        TestCluster cluster(&loop, {seed_of(mute), seed_of(good)});
        const SlotAsked& asked = cluster.ask(1);
        assert_int_equal(asked.error, Error::kNone);
        assert_in_range(asked.took, 190, 600);
        assert_int_equal(mute.connections(), 0);
    }
}

void test_a_seed_that_closes_the_connection_is_skipped(void**) {
    TestLoop loop;
    FakeNode rude(&loop);
    FakeNode good(&loop);
    rude.drops = true;
    good.map = array({good.range(0, 16383)});
    TestCluster cluster(&loop, {seed_of(rude), seed_of(good)});
    assert_int_equal(cluster.ask(1).error, Error::kNone);
}

void test_workers_begin_with_different_seeds(void**) {
    for (std::uint32_t chance = 0; chance < 6; chance++) {
        TestLoop loop;
        loop.chance = chance;
        FakeNode nodes[] = {FakeNode(&loop), FakeNode(&loop), FakeNode(&loop)};
        for (FakeNode& node : nodes) {
            node.map = array({node.range(0, 16383)});
        }
        TestCluster cluster(&loop, {seed_of(nodes[0]), seed_of(nodes[1]), seed_of(nodes[2])});
        assert_int_equal(cluster.ask(1).error, Error::kNone);
        assert_int_equal(nodes[chance % 3].asked, 1);
    }
}

void test_while_no_seed_answers_calls_fail_without_waiting(void**) {
    TestLoop loop;
    FakeNode first(&loop);
    FakeNode second(&loop);
    first.refuse();
    second.map = "-ERR This instance has cluster support disabled\r\n";
    TestCluster cluster(&loop, {seed_of(first), seed_of(second)});
    cluster.send(1);
    cluster.send(kRight);
    assert_true(cluster.await());
    for (const SlotAsked& asked : cluster.all()) {
        // The error of the last seed.
        assert_true(asked.error == Error::kRefused || asked.error == Error::kOther);
        assert_in_range(asked.took, 0, 150);
    }
    assert_false(cluster.available(1));
    assert_int_equal(loop.said("no node returned the slot map: ERR This instance has cluster"), 1);
    loop.run_for(600);
    assert_in_range(second.asked, 3, 8);
    assert_false(cluster.available(1));
    assert_int_equal(loop.said("no node returned"), 1);

    first.listen();
    first.map = array({first.range(0, 16383)});
    assert_true(cluster.await_available(1, true, 1200));
    assert_int_equal(cluster.ask(1).error, Error::kNone);
}

void test_seeds_without_an_address_are_skipped(void**) {
    TestLoop loop;
    TestCluster cluster(&loop, {{"nowhere.invalid", 6379, {}}});
    assert_int_equal(cluster.ask(1).error, Error::kUnresolved);
    assert_int_equal(loop.said("no node is known"), 1);
}

// The system takes 127.1 for a name, and resolves it without a name server.
void test_changed_addresses_of_seeds_are_found(void**) {
    TestLoop loop;
    FakeNode node(&loop);
    node.map = array({node.range(0, 16383)});
    TestCluster cluster(&loop, {{"127.0.0.1", 1, {"127.0.0.1"}}, {"127.1", node.port(), {"127.0.0.9"}}});
    assert_int_equal(cluster.ask(1).error, Error::kRefused);
    assert_true(cluster.await_available(1));
    assert_int_equal(cluster.ask(1).error, Error::kNone);
}

void test_a_seed_keeps_its_address_when_the_lookup_fails(void**) {
    TestLoop loop;
    FakeNode node(&loop);
    node.refuse();
    node.map = array({node.range(0, 16383)});
    TestCluster cluster(&loop, {{std::string(64, 'x'), node.port(), {"127.0.0.1"}}});
    assert_int_equal(cluster.ask(1).error, Error::kRefused);
    loop.run_for(300);
    node.listen();
    assert_true(cluster.await_available(1));
    assert_int_equal(cluster.ask(1).error, Error::kNone);
}

void test_a_map_may_have_as_many_ranges_as_there_are_slots(void**) {
    TestLoop loop;
    FakeNode even(&loop);
    FakeNode odd(&loop);
    std::vector<std::string> ranges;
    for (unsigned slot = 0; slot < kHashSlots; slot++) {
        ranges.push_back((slot % 2 == 0 ? even : odd).range(slot, slot));
    }
    even.map = array(ranges);
    Settings settings = cluster_settings(5000);
    settings.connect_timeout = 5000;
    TestCluster cluster(&loop, {seed_of(even)}, settings);
    for (unsigned slot = 0; slot < 40; slot++) {
        cluster.send(static_cast<HashSlot>(slot * 409), std::to_string(slot * 409));
    }
    assert_true(cluster.await());
    assert_int_equal(cluster->nodes(), 2);
    assert_int_equal(even.calls.size(), 20);
    assert_int_equal(odd.calls.size(), 20);
    for (const std::string& call : odd.calls) {
        assert_int_equal(std::stoi(call) % 2, 1);
    }
    for (unsigned slot = 0; slot < kHashSlots; slot++) {
        assert_ptr_equal(cluster->client_of(static_cast<HashSlot>(slot)),
                         cluster->client_of(static_cast<HashSlot>(slot % 2)));
    }
}

void test_invalid_parts_of_the_map_are_ignored(void**) {
    TestLoop loop;
    FakeNode node(&loop);
    const std::string port = integer(node.port());
    const std::string master = array({bulk(node.host()), port});
    const std::vector<std::string> wrong = {
        integer(7),
        bulk("100"),
        array({}),
        array({integer(100)}),
        array({integer(100), integer(199)}),
        array({integer(100), integer(199), array({})}),
        array({integer(100), integer(199), array({bulk(node.host())})}),
        array({integer(100), integer(199), bulk(node.host())}),
        array({integer(100), integer(199), array({bulk(node.host()), bulk("6379")})}),
        array({integer(100), integer(199), array({bulk(node.host()), integer(0)})}),
        array({integer(100), integer(199), array({bulk(node.host()), integer(-1)})}),
        array({integer(100), integer(199), array({bulk(node.host()), integer(65536 + node.port())})}),
        array({integer(100), integer(199), array({bulk("?"), port})}),
        array({integer(100), integer(199), array({integer(127), port})}),
        array({integer(100), integer(199), array({array({}), port})}),
        array({integer(100), integer(199), array({bulk(std::string(254, 'a')), port})}),
        array({integer(100), integer(199), array({bulk("a\nb"), port})}),
        array({integer(100), integer(199), array({bulk("a b"), port})}),
        array({integer(100), integer(199), array({bulk(node.host() + std::string(1, '\0')), port})}),
        array({integer(199), integer(100), master}),
        array({integer(-1), integer(199), master}),
        array({integer(100), integer(16384), master}),
        array({integer(65636), integer(65736), master}),
        array({bulk("100"), integer(199), master}),
        array({integer(100), bulk("199"), master}),
        array({"$-1\r\n", integer(199), master}),
    };
    for (const std::string& part : wrong) {
        node.map = array({node.range(0, 49), part, node.range(16000, 16383)});
        TestCluster cluster(&loop, {seed_of(node)});
        assert_int_equal(cluster.ask(1).error, Error::kNone);
        assert_int_equal(cluster.ask(16383).error, Error::kNone);
        if (cluster->client_of(100) != nullptr || cluster->client_of(199) != nullptr ||
            cluster->nodes() != 1) {
            fail_msg("%s", part.c_str());
        }
    }
}

void test_an_empty_host_in_the_map_is_the_node_that_answered(void**) {
    for (const std::string& host : {bulk(""), std::string("$-1\r\n")}) {
        TestLoop loop;
        FakeNode node(&loop, "127.0.0.3");
        FakeNode other(&loop, "127.0.0.3");
        node.map = array({array({integer(0), integer(8191), array({host, integer(node.port())})}),
                          array({integer(8192), integer(16383), array({host, integer(other.port())})})});
        TestCluster cluster(&loop, {seed_of(node)});
        assert_int_equal(cluster.ask(kLeft).error, Error::kNone);
        assert_int_equal(cluster.ask(kRight).error, Error::kNone);
        assert_int_equal(node.calls.size(), 1);
        assert_int_equal(other.calls.size(), 1);
        assert_string_equal(cluster->client_of(kRight)->settings().address.host.c_str(), "127.0.0.3");
    }
}

void test_replies_of_a_seed_are_escaped_in_the_log(void**) {
    TestLoop loop;
    FakeNode node(&loop);
    node.map = "-ERR a\tb\x1b[1m\r\n";
    TestCluster cluster(&loop, {seed_of(node)});
    assert_int_equal(cluster.ask(1).error, Error::kOther);
    assert_int_equal(loop.said("no node returned the slot map: ERR a?b?[1m"), 1);
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_seed_that_fails_is_skipped),
        cmocka_unit_test(test_a_silent_seed_is_skipped_after_connect_timeout),
        cmocka_unit_test(test_a_seed_that_closes_the_connection_is_skipped),
        cmocka_unit_test(test_workers_begin_with_different_seeds),
        cmocka_unit_test(test_while_no_seed_answers_calls_fail_without_waiting),
        cmocka_unit_test(test_seeds_without_an_address_are_skipped),
        cmocka_unit_test(test_changed_addresses_of_seeds_are_found),
        cmocka_unit_test(test_a_seed_keeps_its_address_when_the_lookup_fails),
        cmocka_unit_test(test_a_map_may_have_as_many_ranges_as_there_are_slots),
        cmocka_unit_test(test_invalid_parts_of_the_map_are_ignored),
        cmocka_unit_test(test_an_empty_host_in_the_map_is_the_node_that_answered),
        cmocka_unit_test(test_replies_of_a_seed_are_escaped_in_the_log),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
