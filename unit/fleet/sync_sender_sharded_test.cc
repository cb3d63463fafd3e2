// SyncSenders in a cluster: one call for each client, many calls in flight, and none blocks another.
#include "redis/router.h"
#include "sync_senders.h"

namespace rate_limit {
namespace {

const Policy kPolicy = with_debt(policy_of(Algorithm::kFixedWindow, "1000r/d"));

std::string key_of(const std::string& client) { return "rate_limit:api:fixed_window:{" + client + "}"; }

// A zone, its SyncSender, and two servers of which each has every other slot.
struct Scene {
    explicit Scene(redis::Milliseconds timeout = 2000, std::size_t sets = 512,
                   const SyncSender::Options& options = every(10))
        : first(&loop),
          second(&loop),
          instance(kPolicy, sets),
          router(std::make_unique<ShardedRouter>(
              std::vector<std::string>{first.server.path(), second.server.path()}, &loop, timeout)),
          sync_sender(start(instance, router.get(), &loop, process, options)) {}
    ~Scene() {
        sync_sender->stop();
        router.reset();
    }

    bool deliver() {
        return loop.run_until([&] { return !instance.any(); });
    }
    bool is_of_first(const std::string& client) const { return redis::hash_slot_of(key_of(client)) % 2 == 0; }

    // Gives `count` clients of one server unsent counts.
    void use(bool of_first, unsigned count, const std::string& prefix) const {
        for (unsigned i = 0; count != 0; i++) {
            const std::string name = prefix + std::to_string(i);
            if (is_of_first(name) == of_first) {
                assert_int_equal(instance.admitted(name), 1);
                count--;
            }
        }
    }

    // Gives clients unsent counts while the servers do not reply, until as many calls as possible are in
    // flight.
    void fill_calls(unsigned clients) {
        first.send = second.send = [](const std::string&) { return ""; };
        for (unsigned i = 0; i < clients; i++) {
            instance.admitted(name_of(i));
        }
        assert_true(loop.run_until([&] { return first.calls.size() + second.calls.size() == 128; }));
    }

    redis::TestLoop loop;
    SyncServer first;
    SyncServer second;
    InstanceZone instance;
    Process process = this_process();
    std::unique_ptr<ShardedRouter> router;
    std::unique_ptr<SyncSender> sync_sender;
};

void test_each_client_has_a_call_at_its_own_server_with_a_guard_beside_it(void**) {
    Scene scene;
    const char* const names[] = {"alice", "bob", "a}b", "{", "{}", "a{b}c", "}", "\x7d\x01\x02\x03"};
    for (const char* name : names) {
        scene.instance.admitted(name, 2);
    }
    assert_true(scene.deliver());
    std::map<std::string, unsigned> seen;
    for (const SyncServer* server : {&scene.first, &scene.second}) {
        for (const SeenCall& call : server->calls) {
            assert_int_equal(call.keys.size(), 1);
            assert_int_equal(call.amounts.begin()->second, 2);
            const redis::HashSlot slot = redis::hash_slot_of(call.keys[0]);
            assert_int_equal(slot % 2, server == &scene.first ? 0 : 1);
            assert_int_equal(redis::hash_slot_of(call.guard), slot);
            assert_int_equal(call.guard.compare(0, 20, "rate_limit:sync:api:"), 0);
            seen[call.keys[0]]++;
        }
    }
    assert_int_equal(seen.size(), std::size(names));
    assert_int_equal(seen.at(key_of("alice")), 1);
    assert_int_equal(seen.at(key_of("a{b}c")), 1);
}

void test_many_calls_are_in_flight_but_not_all(void**) {
    Scene scene;
    scene.fill_calls(400);
    scene.loop.run_for(50);
    assert_int_equal(scene.first.calls.size() + scene.second.calls.size(), 128);
    scene.first.send = scene.second.send = redis::bulk;
    scene.loop.jump(2000);  // calls without a reply time out
    assert_true(scene.deliver());
    assert_int_equal(scene.first.total() + scene.second.total(), 400);
}

void test_only_clients_of_a_server_that_is_down_wait(void**) {
    Scene scene(60, 1024);
    scene.use(true, 1, "warm");
    scene.use(false, 1, "warm");
    assert_true(scene.deliver());
    scene.first.server.refuse();
    scene.first.server.hang_up();
    // More clients than a round would try without success.
    scene.use(true, 3000, "waits");
    scene.loop.run_for(100);
    for (unsigned round = 0; round < 3; round++) {
        const std::uint64_t before = scene.second.total();
        scene.use(false, 20, "goes" + std::to_string(round) + " ");
        assert_true(scene.loop.run_until([&] { return scene.second.total() == before + 20; }, 2000));
    }
    scene.first.server.listen();
    assert_true(scene.deliver());
    assert_int_equal(scene.first.total(), 3001);
    assert_int_equal(scene.second.total(), 61);
}

void test_only_clients_of_slots_without_a_server_wait(void**) {
    Scene scene;
    scene.router->nobody = 0;
    scene.use(true, 5, "waits");
    scene.use(false, 5, "goes");
    assert_true(scene.loop.run_until([&] { return scene.second.total() == 5; }));
    scene.loop.run_for(30);
    assert_int_equal(scene.first.calls.size(), 0);
    scene.router->nobody = ~std::size_t{0};
    assert_true(scene.deliver());
    assert_int_equal(scene.first.total(), 5);
}

void test_calls_with_lost_replies_are_charged_once(void**) {
    Scene scene(50);
    unsigned replies = 0;
    const auto lose_some = [&](const std::string& reply) {
        replies++;
        return replies % 3 == 0   ? "-LOADING Redis is loading\r\n"
               : replies % 3 == 1 ? redis::bulk("x")
                                  : redis::bulk(reply);
    };
    scene.first.send = scene.second.send = lose_some;
    for (unsigned round = 0; round < 5; round++) {
        for (unsigned i = 0; i < 40; i++) {
            assert_int_equal(scene.instance.admitted(name_of(i), 1 + i % 3), 1 + i % 3);
        }
        scene.loop.run_for(20);
    }
    scene.first.send = scene.second.send = redis::bulk;
    assert_true(scene.deliver());
    for (unsigned i = 0; i < 40; i++) {
        const std::string key = key_of(name_of(i));
        assert_int_equal(scene.first.charged[key] + scene.second.charged[key], 5 * (1 + i % 3));
    }
}

void test_a_sync_sender_may_be_destroyed_while_calls_are_in_flight(void**) {
    Scene scene;
    scene.fill_calls(300);
    scene.sync_sender->stop();
    scene.router.reset();
    scene.sync_sender.reset();
    scene.first.send = scene.second.send = redis::bulk;
    scene.router = std::make_unique<ShardedRouter>(
        std::vector<std::string>{scene.first.server.path(), scene.second.server.path()}, &scene.loop);
    scene.sync_sender = start(scene.instance, scene.router.get(), &scene.loop, scene.process);
    assert_true(scene.deliver());
    assert_int_equal(scene.first.total() + scene.second.total(), 300);
}

void test_a_process_that_ends_waits_for_all_calls_in_flight(void**) {
    Scene scene(2000, 512, every(3'600'000));
    for (unsigned i = 0; i < 300; i++) {
        scene.instance.admitted(name_of(i));
    }
    const Process other = made_up_process(1);
    scene.sync_sender->end();
    assert_int_equal(scene.instance.unsent_counts().leader().lead(other), Leader::Lead::kNo);
    assert_true(scene.deliver());
    scene.loop.run_for(5);
    assert_int_equal(scene.first.total() + scene.second.total(), 300);
    assert_int_equal(scene.instance.unsent_counts().leader().lead(other), Leader::Lead::kNew);
    scene.instance.unsent_counts().leader().resign(other);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_each_client_has_a_call_at_its_own_server_with_a_guard_beside_it),
        cmocka_unit_test(test_many_calls_are_in_flight_but_not_all),
        cmocka_unit_test(test_only_clients_of_a_server_that_is_down_wait),
        cmocka_unit_test(test_only_clients_of_slots_without_a_server_wait),
        cmocka_unit_test(test_calls_with_lost_replies_are_charged_once),
        cmocka_unit_test(test_a_sync_sender_may_be_destroyed_while_calls_are_in_flight),
        cmocka_unit_test(test_a_process_that_ends_waits_for_all_calls_in_flight),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
