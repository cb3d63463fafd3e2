// Real nodes redirect calls, lose slots and fail in the way of the fake ones.
#include "fake_cluster.h"
#include "redis/real_server.h"

namespace rate_limit::redis {
namespace {

class RealNode : public RealServer {
  public:
    explicit RealNode(std::uint16_t port)
        : RealServer({"--port", std::to_string(port), "--cluster-enabled", "yes", "--cluster-port",
                      std::to_string(free_port()), "--cluster-require-full-coverage", "no"}),
          port(port),
          id(command({"CLUSTER", "MYID"})) {}

    long keys() const { return std::stol(command({"DBSIZE"})); }

    const std::uint16_t port;
    const std::string id;
};

// Two nodes with half of the slots each.
struct RealPair {
    RealPair() : left(free_port()), right(free_port()), cluster(&loop, {seed()}, cluster_settings(2000)) {
        left.command({"CLUSTER", "ADDSLOTSRANGE", "0", "8191"});
        right.command({"CLUSTER", "ADDSLOTSRANGE", "8192", "16383"});
        left.command({"CLUSTER", "SET-CONFIG-EPOCH", "1"});
        right.command({"CLUSTER", "SET-CONFIG-EPOCH", "2"});
        introduce(left, std::to_string(right.port), right_bus(),
                  [&] { return knows_all(left) && knows_all(right); });
    }

    Seed seed() const { return {"127.0.0.1", left.port, {"127.0.0.1"}}; }

    std::string right_bus() const {
        const std::string nodes = right.command({"CLUSTER", "NODES"});
        const std::size_t at = nodes.find('@') + 1;
        return nodes.substr(at, nodes.find_first_of(", ", at) - at);
    }

    static bool knows_all(const RealNode& node) {
        const std::string info = node.command({"CLUSTER", "INFO"});
        return info.find("cluster_state:ok") != std::string::npos &&
               info.find("cluster_slots_assigned:16384") != std::string::npos;
    }

    // A call that writes the client's key, and must be answered.
    const SlotAsked& write(const std::string& key) {
        const SlotAsked& asked = cluster.send(
            hash_slot_of(key), {"EVAL", "redis.call('SET', KEYS[1], ARGV[1]) return ARGV[1]", "1", key, key});
        assert_true(cluster.await());
        return asked;
    }

    // The same by the digest of a script, which must first be loaded into the node.
    const SlotAsked& echo(const std::string& key) {
        const SlotAsked& asked = cluster.send(hash_slot_of(key), {"EVALSHA", sha1_of(kEcho), "1", key, key});
        assert_true(cluster.await());
        return asked;
    }

    TestLoop loop;
    RealNode left;
    RealNode right;
    TestCluster cluster;
};

void test_keys_go_to_the_nodes_that_have_their_slots(void**) {
    RealPair pair;
    unsigned left = 0;
    for (unsigned i = 0; i < 200; i++) {
        const std::string key = "zone:{client" + std::to_string(i) + "}";
        left += hash_slot_of(key) < 8192 ? 1 : 0;
        const SlotAsked& asked = pair.write(key);
        assert_int_equal(asked.error, Error::kNone);
        assert_string_equal(asked.reply.c_str(), key.c_str());
    }
    assert_int_equal(pair.left.keys(), left);
    assert_int_equal(pair.right.keys(), 200 - left);
    assert_int_equal(pair.cluster->client_of(0)->counts().errors[static_cast<unsigned>(Error::kMoved)], 0);
    assert_int_equal(pair.cluster->nodes(), 2);
}

void test_a_slot_may_move_between_calls(void**) {
    RealPair pair;
    const std::string slot = std::to_string(hash_slot_of("hello"));
    assert_int_equal(pair.write("x{hello}").error, Error::kNone);
    pair.left.command({"CLUSTER", "SETSLOT", slot, "MIGRATING", pair.right.id});
    pair.right.command({"CLUSTER", "SETSLOT", slot, "IMPORTING", pair.left.id});
    // During a migration, the old node serves existing keys, and redirects the others by ASK.
    assert_int_equal(pair.write("x{hello}").error, Error::kNone);
    assert_int_equal(pair.right.keys(), 0);
    assert_int_equal(pair.write("y{hello}").error, Error::kNone);
    assert_int_equal(pair.right.keys(), 1);
    pair.right.command({"SCRIPT", "FLUSH"});
    assert_int_equal(pair.echo("z{hello}").error, Error::kNone);
    const SlotAsked& both = pair.cluster.send(
        hash_slot_of("hello"),
        {"EVAL", "return redis.call('MGET', unpack(KEYS))[1]", "2", "x{hello}", "y{hello}"});
    assert_true(pair.cluster.await());
    assert_int_equal(both.error, Error::kTryAgain);

    pair.left.command({"MIGRATE", "127.0.0.1", std::to_string(pair.right.port), "x{hello}", "0", "1000"});
    for (const RealNode* node : {&pair.right, &pair.left}) {
        node->command({"CLUSTER", "SETSLOT", slot, "NODE", pair.right.id});
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(pair.write("x{hello}").error, Error::kNone);
    }
    assert_int_equal(pair.cluster->client_of(0)->counts().errors[static_cast<unsigned>(Error::kMoved)], 1);
    assert_int_equal(pair.left.keys(), 0);
    assert_int_equal(pair.right.keys(), 2);
}

void test_a_slot_without_a_node_is_an_error_until_it_has_one(void**) {
    RealPair pair;
    const std::string slot = std::to_string(hash_slot_of("hello"));
    assert_int_equal(pair.write("x{hello}").error, Error::kNone);
    for (const RealNode* node : {&pair.left, &pair.right}) {
        node->command({"CLUSTER", "DELSLOTS", slot});
    }
    assert_int_equal(pair.write("y{hello}").error, Error::kClusterDown);
    pair.left.command({"CLUSTER", "ADDSLOTS", slot});
    assert_int_equal(pair.write("y{hello}").error, Error::kNone);
}

void test_a_killed_node_affects_only_its_own_slots(void**) {
    RealPair pair;
    const std::string far = "x{foo}";
    const std::string near = "x{hello}";
    assert_int_equal(pair.write(far).error, Error::kNone);
    assert_int_equal(pair.write(near).error, Error::kNone);
    pair.right.stop();
    while (pair.cluster.available(hash_slot_of(far))) {
        assert_int_not_equal(pair.write(far).error, Error::kNone);
    }
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(pair.write(near).error, Error::kNone);
        pair.loop.run_for(5);
    }
    pair.right.start();
    assert_true(pair.loop.run_until(
        [&] { return pair.cluster.available(hash_slot_of(far)) && pair.write(far).error == Error::kNone; }));
}

void test_a_server_without_cluster_mode_is_not_a_seed(void**) {
    TestLoop loop;
    const std::uint16_t port = free_port();
    const RealServer server({"--port", std::to_string(port)});
    TestCluster cluster(&loop, {{"127.0.0.1", port, {"127.0.0.1"}}});
    assert_int_equal(cluster.ask(1).error, Error::kOther);
    assert_int_equal(loop.said("ERR This instance has cluster support disabled"), 1);
}

void test_a_single_node_does_not_know_its_address(void**) {
    TestLoop loop;
    const RealNode node(free_port());
    TestCluster cluster(&loop, {{"127.0.0.1", node.port, {"127.0.0.1"}}});
    assert_int_equal(cluster.ask(1).error, Error::kClusterDown);
    assert_int_equal(loop.said("the node knows no slots"), 1);
    node.command({"CLUSTER", "ADDSLOTSRANGE", "0", "16383"});
    assert_true(loop.run_until([&] { return cluster.available(1) && cluster.ask(1).error == Error::kNone; }));
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_go_to_the_nodes_that_have_their_slots),
        cmocka_unit_test(test_a_slot_may_move_between_calls),
        cmocka_unit_test(test_a_slot_without_a_node_is_an_error_until_it_has_one),
        cmocka_unit_test(test_a_killed_node_affects_only_its_own_slots),
        cmocka_unit_test(test_a_server_without_cluster_mode_is_not_a_seed),
        cmocka_unit_test(test_a_single_node_does_not_know_its_address),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
