// Hostile nodes of a cluster cost a worker little CPU, memory, connections and log lines.
#include <ctime>

#include "connection/log_limit.h"
#include "fake_cluster.h"
#include "redis/hiredis_memory.h"

namespace rate_limit::redis {
namespace {

double cpu_seconds() {
    timespec time = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A local address without a listener.
std::string nowhere(unsigned number) {
    return "127.77." + std::to_string(number / 250) + "." + std::to_string(1 + number % 250);
}

// A thousand nodes with one slot each. Each map has other nodes.
std::string map_of_many(unsigned version, const FakeNode& seed) {
    std::vector<std::string> ranges = {seed.range(1000, 16383)};
    for (unsigned i = 0; i < 1000; i++) {
        ranges.push_back(array({integer(i), integer(i), array({bulk(nowhere(i)), integer(1 + version)})}));
    }
    return array(ranges);
}

void test_a_large_map_that_always_changes_costs_little(void**) {
    constexpr unsigned kMaps = 10;
    TestLoop loop;
    FakeNode seed(&loop);
    std::vector<std::string> maps;
    for (unsigned version = 0; version <= kMaps; version++) {
        maps.push_back(map_of_many(version, seed));
    }
    seed.map = maps[0];
    TestCluster cluster(&loop, {seed_of(seed)});
    assert_int_equal(cluster.ask(kRight).error, Error::kNone);
    const double began = cpu_seconds();
    for (unsigned version = 1; version <= kMaps; version++) {
        seed.map = maps[version];
        seed.run = [&](const Words&) { return seed.moved(kRight); };
        loop.jump(200);
        cluster.send(kRight);
        assert_true(cluster.await());
        assert_true(loop.run_until(
            [&] { return cluster->client_of(1)->settings().address.port == 1 + version; }, 10'000));
    }
    const double each = (cpu_seconds() - began) / kMaps;
    print_message("%.1f ms for a map of 1000 other nodes\n", 1000 * each);
    assert_int_equal(cluster->nodes(), 1001);
    assert_true(each < 0.1);
}

// Probes for which no key is found go to the wrong node, and are answered.
void test_each_node_is_probed_with_its_own_key(void**) {
    TestLoop loop;
    FakeNode left(&loop);
    FakeNode right(&loop);
    left.map = right.map = array({left.range(0, 99), right.range(100, 16383)});
    TestCluster cluster(&loop, {seed_of(left)}, cluster_settings(100));
    assert_int_equal(cluster.ask(1).error, Error::kNone);
    assert_int_equal(cluster.ask(kRight).error, Error::kNone);
    for (FakeNode* node : {&left, &right}) {
        const HashSlot slot = node == &left ? 1 : kRight;
        node->run = [](const Words&) { return "-LOADING wait\r\n"; };
        for (unsigned i = 0; i < 5; i++) {
            assert_int_equal(cluster.ask(slot).error, Error::kLoading);
        }
        node->run = nullptr;
        assert_true(loop.run_until([&] { return node->count("SET") == 1 && cluster.available(slot); }));
        const auto set = std::find_if(node->commands.begin(), node->commands.end(),
                                      [](const Words& words) { return words[0] == "SET"; });
        assert_int_equal(hash_slot_of((*set)[1]) < 100, node == &left);
    }
}

void test_redirections_to_random_nodes_are_limited_and_so_is_their_log(void**) {
    Pair pair;
    unsigned number = 0;
    const auto anywhere = [&](const Words&) {
        number++;
        return "-MOVED " + std::to_string(number % 8192) + " " + nowhere(number) + ":1\r\n";
    };
    for (unsigned round = 0; round < 20; round++) {
        pair.left.run = anywhere;
        const unsigned before = pair.loop.attached;
        for (unsigned i = 0; i < 200; i++) {
            pair.cluster.send(kLeft);
        }
        assert_true(pair.cluster.await());
        assert_in_range(pair.loop.attached, 0, before + 64 + 2);
        pair.left.run = nullptr;
        pair.forget();
        pair.share(8192);
        assert_true(pair.cluster.await_available(kLeft));
        assert_int_equal(pair.cluster.ask(kRight).error, Error::kNone);
    }
    std::size_t followed = 0;
    for (const SlotAsked& asked : pair.cluster.all()) {
        followed += asked.error == Error::kRefused ? 1 : 0;
    }
    assert_int_equal(number, 20 * 200);
    assert_in_range(followed, 20, 20 * 64);
    print_message("%zu of %u redirections were followed, %zu lines\n", followed, number,
                  pair.loop.lines.size());
    assert_in_range(pair.loop.lines.size(), 1, 3 * LogLimit::kMost);
    // After a valid map, calls succeed again.
    assert_true(pair.loop.run_until([&] { return pair.cluster.available(kLeft); }));
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
}

void test_a_map_that_is_too_large_is_rejected_before_it_is_stored(void**) {
    std::string arrays = "*16384\r\n";
    for (unsigned i = 0; i < 5000; i++) {
        arrays += "*16384\r\n";
    }
    std::string deep;
    for (unsigned i = 0; i < 1'000'000; i++) {
        deep += "*1\r\n";
    }
    for (const std::string& map : {arrays, deep, "*1\r\n$1200000000\r\n" + std::string(40U << 20, 'x'),
                                   "+" + std::string(40U << 20, 'x')}) {
        const HiredisMemory memory;
        TestLoop loop;
        FakeNode wrong(&loop);
        FakeNode good(&loop);
        wrong.map = map;
        good.map = array({good.range(0, 16383)});
        Settings settings = cluster_settings(5000);
        settings.connect_timeout = 5000;
        TestCluster cluster(&loop, {seed_of(wrong), seed_of(good)}, settings);
        assert_int_equal(cluster.ask(1).error, Error::kNone);
        assert_int_equal(wrong.asked, 1);
        if (HiredisMemory::most > 72U << 20) {
            fail_msg("%zu bytes for a map that starts with %.12s", HiredisMemory::most, map.c_str());
        }
    }
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_large_map_that_always_changes_costs_little),
        cmocka_unit_test(test_each_node_is_probed_with_its_own_key),
        cmocka_unit_test(test_redirections_to_random_nodes_are_limited_and_so_is_their_log),
        cmocka_unit_test(test_a_map_that_is_too_large_is_rejected_before_it_is_stored),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
