// Charges of a zone with sync= are corrected where they are: in the unsent count, or in Redis once a sync
// call has told Redis.
#include "requests.h"

namespace rate_limit {
namespace {

// A zone whose counts are sent to the first server of a scene.
struct Synchronised {
    explicit Synchronised(const Policy& policy) : zone(policy, layout_of(policy), kMegabyteZone, true) {}
    explicit Synchronised(Algorithm algorithm) : Synchronised(policy_for(algorithm)) {}
    ~Synchronised() { wall_clock = kNow; }

    static Policy policy_for(Algorithm algorithm) {
        Policy policy = policy_of(algorithm, "20r/m");
        policy.burst = 19;
        policy.debt = true;
        return policy;
    }

    TestLimit limit(std::uint64_t cost) const {
        TestLimit limit = {&zone};
        limit.cost = cost;
        limit.corrector = scene.first.get();
        return limit;
    }

    // What Redis does not know yet. If `sends`, a sync call tells Redis.
    std::uint64_t unsent(bool sends = false) const {
        const Slot slot = zone->find(zone->hash("alice"), kProcess);
        UnsentCount& count = zone->unsent_of(slot);
        const std::uint64_t amount = count.unsent();
        if (sends) {
            count.send(amount, 1, 1, wall_clock);
            count.arrive();
        }
        Table::keep(slot, kProcess);
        return amount;
    }

    // The only correction that Redis gets.
    SeenGroup correction() {
        assert_true(scene.loop.run_until([&] { return scene.first_server.groups() == 1; }));
        return scene.first_server.calls.back().groups.back();
    }
    void expect_no_correction() {
        scene.loop.run_for(10);
        assert_int_equal(scene.first_server.groups(), 0);
    }

    Scene scene;
    Zone zone;
};

void test_what_was_not_sent_is_taken_from_the_unsent_count(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const bool settles : {true, false}) {
            Synchronised sync(algorithm);
            Request request({sync.limit(6)});
            wall_clock += 1;
            use(sync.zone, 3);
            assert_true(settles ? request.settle(0, 2) : request.refund_all() == 0);
            assert_int_equal(sync.unsent(), settles ? 5 : 3);
            sync.expect_no_correction();
        }
    }
}

void test_what_was_sent_is_given_back_by_redis_and_not_by_later_requests(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const bool settles : {true, false}) {
            Synchronised sync(algorithm);
            Request request({sync.limit(6)});
            wall_clock += 1;
            assert_int_equal(sync.unsent(true), 6);
            wall_clock += 1;
            use(sync.zone, 3);
            assert_true(settles ? request.settle(0, 2) : request.refund_all() == 0);
            assert_int_equal(sync.unsent(), 3);
            const SeenGroup group = sync.correction();
            assert_int_equal(group.kind, settles ? kUndo : kUndoRequest);
            assert_int_equal(group.limits[0].cost, settles ? 4 : 6);
            assert_int_equal(group.limits[0].charge.cost, 6);
            assert_int_equal(group.limits[0].charge.at, kNow);
        }
    }
}

// The next minute must not get back what the last one was charged.
void test_a_window_that_has_ended_takes_nothing_from_the_next_one(void**) {
    Synchronised sync(Algorithm::kFixedWindow);
    Request request({sync.limit(6)});
    wall_clock += 1;
    assert_int_equal(sync.unsent(true), 6);
    wall_clock += 60 * kSecond;
    use(sync.zone, 6);
    assert_true(request.settle(0, 0));
    assert_int_equal(sync.unsent(), 6);
    assert_int_equal(used(sync.zone), 6);
    assert_int_equal(sync.correction().limits[0].charge.at, kNow);
}

void test_redis_is_told_the_time_by_its_own_clock(void**) {
    Synchronised sync(Algorithm::kFixedWindow);
    sync.zone->unsent_counts().set_ahead(-30 * kSecond);
    Request request({sync.limit(6)});
    wall_clock += 1;
    assert_int_equal(sync.unsent(true), 6);
    assert_true(request.settle(0, 1));
    assert_int_equal(sync.correction().limits[0].charge.at, kNow - 30 * kSecond);
}

// The client was evicted and came back: its unsent count has only new requests.
void test_a_client_that_was_evicted_keeps_its_new_requests(void**) {
    Synchronised sync(Algorithm::kFixedWindow);
    Request request({sync.limit(6)});
    wall_clock += 1;
    assert_true(sync.zone->forget(sync.zone->hash("alice"), kProcess));
    use(sync.zone, 3);
    assert_true(request.settle(0, 1));
    assert_int_equal(sync.unsent(), 3);
}

void test_without_redis_the_estimate_stays(void**) {
    Synchronised sync(Algorithm::kFixedWindow);
    Request request({sync.limit(6)});
    wall_clock += 1;
    assert_int_equal(sync.unsent(true), 6);
    sync.scene.lose_first();
    assert_false(request.settle(0, 1));
    Request unconnected({{&sync.zone}});
    wall_clock += 1;
    assert_int_equal(sync.unsent(true), 1);
    assert_false(unconnected.settle(0, 0));
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_not_sent_is_taken_from_the_unsent_count),
        cmocka_unit_test(test_what_was_sent_is_given_back_by_redis_and_not_by_later_requests),
        cmocka_unit_test(test_a_window_that_has_ended_takes_nothing_from_the_next_one),
        cmocka_unit_test(test_redis_is_told_the_time_by_its_own_clock),
        cmocka_unit_test(test_a_client_that_was_evicted_keeps_its_new_requests),
        cmocka_unit_test(test_without_redis_the_estimate_stays),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
