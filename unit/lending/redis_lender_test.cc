// Requests that are charged to leases, asks for portions beside requests that wait, and what is given back to
// Redis.
#include "lending/redis_lender.h"

#include <memory>

#include "lending/lease_keeper.h"
#include "store/decide.h"
#include "store/requests.h"

namespace rate_limit {
namespace {

// One zone with leases, its batcher and its lender.
struct Scene {
    explicit Scene(Algorithm algorithm = Algorithm::kFixedWindow)
        : server(&loop),
          batcher(&loop, server.server.path()),
          policy(policy_of(algorithm, "10000r/s")),
          memory(Leases::least_size()) {
        zone.label = "api";
        zone.layout = layout_of(policy);
        zone.batcher = batcher.get();
        zone.leases = Leases::create(memory.at(), memory.size(), kKey);
        zone.lease = {10, true};
        lender = std::make_unique<RedisLender>(&zone, kProcess, [] { return wall_clock; });
        zone.lender = lender.get();
        server.decide = [this](const SeenLimit& limit) {
            costs.push_back(limit.cost);
            return refuses ? reject(3 * kSecond, 3 * kSecond, remaining) : admit(5, kSecond);
        };
    }

    // A request that is decided in the end.
    struct Asked {
        Limit limit;
        std::aligned_storage_t<sizeof(RequestCheck), alignof(RequestCheck)> check;
        RequestOutcome outcome;
        bool done = false;
    };

    Asked& request(std::uint64_t cost = 1) {
        requests.push_back(std::make_unique<Asked>());
        Asked& asked = *requests.back();
        asked.limit = {&zone,     &policy, "alice", cost,  nullptr, false, false, DecidedBy::kNobody,
                       kNoReason, {},      0,       false, 0};
        asked.outcome = decide(
            &asked.limit, 1, kProcess, [] { return wall_clock; },
            {[](void* self, std::size_t) -> void* { return &static_cast<Asked*>(self)->check; },
             [](RequestCheck* check) {
                 auto* self = static_cast<Asked*>(check->data);
                 self->outcome = check->outcome();
                 self->done = true;
             }},
            &asked);
        asked.done = asked.outcome.progress != Progress::kWaiting;
        return asked;
    }

    void settle_all() {
        assert_true(loop.run_until([this] {
            return std::all_of(requests.begin(), requests.end(),
                               [](const auto& asked) { return asked->done; });
        }));
    }

    // Makes requests until a lease has units.
    void warm_up() {
        for (unsigned i = 0; i < 50 && units() == 0; i++) {
            request();
            settle_all();
            loop.run_for(2);
            steady_clock += 1000;
        }
        assert_true(units() > 1);
    }

    std::uint64_t units() {
        return zone.leases->units({"alice", zone.leases->hash("alice"), &policy}, kProcess);
    }

    void use_all() {
        while (units() != 0) {
            assert_int_equal(request().limit.decided_by, DecidedBy::kLease);
        }
    }

    redis::TestLoop loop;
    ScriptServer server;
    TestBatcher batcher;
    Policy policy;
    Memory memory;
    StoreZone zone = {};
    std::unique_ptr<RedisLender> lender;
    std::vector<std::unique_ptr<Asked>> requests;
    std::vector<std::uint64_t> costs;  // of the checks that Redis has seen
    bool refuses = false;
    std::uint64_t remaining = 0;  // that Redis reports with a refusal
};

void test_requests_of_a_hot_client_are_charged_to_its_lease(void**) {
    Scene scene;
    scene.warm_up();
    const std::uint64_t units = scene.units();
    const std::size_t calls = scene.costs.size();
    const Scene::Asked& asked = scene.request();
    assert_int_equal(asked.outcome.progress, Progress::kAdmitted);
    assert_int_equal(asked.limit.decided_by, DecidedBy::kLease);
    assert_true(asked.limit.charged);
    assert_int_equal(asked.limit.decision.limit, 10000);
    // By Redis's clock, in the window of the charge.
    assert_in_range(asked.limit.decided_at, ScriptServer::kTime, ScriptServer::kTime + kSecond);
    assert_int_equal(scene.units(), units - 1);
    assert_int_equal(scene.costs.size(), calls);
    assert_true(*std::max_element(scene.costs.begin(), scene.costs.end()) > 1);  // a portion
}

void test_a_refund_goes_to_the_lease_or_to_the_window_of_the_charge(void**) {
    Scene scene;
    scene.warm_up();
    const std::uint64_t units = scene.units();
    Limit limit = scene.request().limit;
    refund(&limit, 1, kProcess, [] { return wall_clock; });
    assert_false(limit.charged);
    assert_int_equal(scene.units(), units);
    limit = scene.request().limit;
    steady_clock += 2 * kSecond;
    refund(&limit, 1, kProcess, [] { return wall_clock; });
    assert_true(scene.loop.run_until([&] { return !scene.server.refunds().empty(); }));
    const SeenGroup group = scene.server.refunds().back();
    assert_int_equal(group.limits[0].cost, 1);
    assert_int_equal(group.limits[0].charge.at, limit.decided_at);
}

void test_a_refund_of_drained_units_is_dropped(void**) {
    Scene scene(Algorithm::kTokenBucket);
    scene.warm_up();
    Limit limit = scene.request().limit;
    assert_int_equal(limit.decided_by, DecidedBy::kLease);
    steady_clock += 2 * kSecond;
    refund(&limit, 1, kProcess, [] { return wall_clock; });
    scene.loop.run_for(20);
    assert_true(scene.server.refunds().empty());
}

void test_settle_corrects_a_leased_charge(void**) {
    Scene scene;
    scene.warm_up();
    const std::uint64_t units = scene.units();
    Limit limit = scene.request(2).limit;
    assert_int_equal(limit.decided_by, DecidedBy::kLease);
    assert_true(settle(&limit, 1, kProcess, [] { return wall_clock; }));
    assert_int_equal(scene.units(), units - 1);
    limit = scene.request().limit;
    assert_true(settle(&limit, 5, kProcess, [] { return wall_clock; }));
    assert_true(scene.loop.run_until([&] {
        return !scene.server.calls.empty() && scene.server.calls.back().groups.back().kind == kOverdraw;
    }));
    assert_int_equal(scene.server.calls.back().groups.back().limits[0].cost, 4);
}

void test_what_redis_has_left_is_asked_for_and_then_the_next_request(void**) {
    Scene scene;
    scene.warm_up();
    scene.use_all();
    scene.loop.run_for(5);
    scene.use_all();
    scene.refuses = true;
    scene.remaining = 2;
    scene.costs.clear();
    steady_clock += 30'000;
    for (unsigned i = 0; i < 30; i++) {
        scene.request();
    }
    scene.settle_all();
    scene.loop.run_for(5);
    // The requests themselves, the portion, and the two that Redis says are left.
    assert_true(std::count(scene.costs.begin(), scene.costs.end(), 2) >= 1);
    const Scene::Asked& asked = scene.request();
    assert_int_equal(asked.outcome.progress, Progress::kRejected);
    assert_int_equal(asked.limit.decided_by, DecidedBy::kLease);
    assert_in_range(asked.limit.decision.retry_after, 1, 3 * kSecond);
    assert_false(asked.limit.charged);
}

void test_leased_units_are_used_while_redis_is_away(void**) {
    Scene scene;
    scene.warm_up();
    scene.server.send = [](const std::string&) { return std::string(); };
    const std::uint64_t units = scene.units();
    for (std::uint64_t i = 0; i < units; i++) {
        assert_int_equal(scene.request().limit.decided_by, DecidedBy::kLease);
    }
    assert_int_equal(scene.request().outcome.progress, Progress::kWaiting);
    scene.settle_all();
    assert_int_equal(scene.requests.back()->outcome.error, redis::Error::kTimedOut);
    assert_int_equal(scene.units(), 0);
}

void test_after_the_end_nothing_is_asked_and_answers_go_back(void**) {
    Scene scene;
    scene.warm_up();
    scene.use_all();  // asks for more
    scene.lender->end();
    const std::size_t before = scene.server.refunds().size();
    scene.loop.run_for(20);
    assert_int_equal(scene.units(), 0);
    assert_int_equal(scene.server.refunds().size(), before + 1);
    assert_true(scene.server.refunds().back().limits[0].cost > 1);
}

void test_a_batcher_may_be_destroyed_with_asks_in_flight(void**) {
    Scene scene;
    scene.warm_up();
    scene.use_all();
    scene.batcher.end();
}

void test_the_keeper_gives_back_what_an_idle_client_holds(void**) {
    Scene scene;
    scene.warm_up();
    scene.loop.run_for(5);
    const std::uint64_t units = scene.units();
    std::unique_ptr<LeaseKeeper> keeper(
        LeaseKeeper::make(&scene.zone, scene.policy, 1, &scene.batcher->router(), &scene.loop, kProcess));
    scene.loop.run_for(150);
    assert_int_equal(scene.units(), units);
    steady_clock += kLeaseIdle;
    assert_true(scene.loop.run_until([&] { return !scene.server.refunds().empty(); }));
    assert_int_equal(scene.server.refunds()[0].limits[0].cost, units);
    assert_int_equal(scene.server.refunds()[0].kind, kUndo);
    assert_int_equal(scene.units(), 0);
    assert_int_equal(scene.zone.leases->totals().returned, units);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_of_a_hot_client_are_charged_to_its_lease),
        cmocka_unit_test(test_a_refund_goes_to_the_lease_or_to_the_window_of_the_charge),
        cmocka_unit_test(test_a_refund_of_drained_units_is_dropped),
        cmocka_unit_test(test_settle_corrects_a_leased_charge),
        cmocka_unit_test(test_what_redis_has_left_is_asked_for_and_then_the_next_request),
        cmocka_unit_test(test_leased_units_are_used_while_redis_is_away),
        cmocka_unit_test(test_after_the_end_nothing_is_asked_and_answers_go_back),
        cmocka_unit_test(test_a_batcher_may_be_destroyed_with_asks_in_flight),
        cmocka_unit_test(test_the_keeper_gives_back_what_an_idle_client_holds),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
