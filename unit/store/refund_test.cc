// A request that was admitted gets its charges back: in memory, in Redis and from the fallback, each of them
// once.
#include "requests.h"

namespace rate_limit {
namespace {

void test_every_algorithm_in_memory_gets_its_charge_back(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Policy policy = policy_of(algorithm, "10r/m");
        policy.burst = policy.capacity = 9;
        const Zone zone(policy);
        use(zone, 2);
        TestLimit limit = {&zone};
        limit.cost = 3;
        Request request({limit});
        assert_int_equal(request.at_once(), Progress::kAdmitted);
        assert_int_equal(used(zone), 5);
        const std::uint32_t left = request.decision(0).remaining;
        assert_int_equal(request.refund_all(), 0);
        assert_int_equal(used(zone), 2);
        assert_int_equal(request.decision(0).remaining, left + 3);
        assert_int_equal(request.refund_all(), 0);
        assert_int_equal(used(zone), 2);
    }
}

void test_limits_in_memory_and_in_two_redis_are_refunded(void**) {
    Scene scene;
    Request request({scene.in_first(), scene.in_memory(), scene.in_second()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(used(scene.zone), 1);
    assert_int_equal(request.refund_all(), 0);
    assert_int_equal(used(scene.zone), 0);
    for (ScriptServer* server : {&scene.first_server, &scene.second_server}) {
        assert_true(scene.loop.run_until([&] { return server->refunds().size() == 1; }));
    }
    assert_int_equal(request.refund_all(), 0);
    scene.loop.run_for(10);
    assert_int_equal(scene.first_server.refunds().size() + scene.second_server.refunds().size(), 2);
}

// The limits may be those of several locations: more than one location may have.
void test_any_number_of_limits_is_refunded(void**) {
    Scene scene;
    std::deque<Request> requests;
    std::vector<Limit> all;
    for (unsigned i = 0; i < 3; i++) {
        const std::vector<TestLimit> limits(kMaxLimits, scene.in_first());
        const Request& request = requests.emplace_back(limits);
        assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
        all.insert(all.end(), request.limits().begin(), request.limits().end());
    }
    refund(all.data(), all.size(), kProcess, [] { return wall_clock; });
    assert_true(scene.loop.run_until([&] { return scene.first_server.refunds().size() == 3; }));
    for (const SeenGroup& group : scene.first_server.refunds()) {
        assert_int_equal(group.limits.size(), kMaxLimits);
    }
}

void test_a_rejected_request_is_not_refunded(void**) {
    const Zone full(kPolicy);
    const Zone other(kPolicy);
    use(full, 10);
    use(other, 1);
    Request request({{&full}, {&other}});
    assert_int_equal(request.at_once(), Progress::kRejected);
    assert_true(request.decision(1).allowed);
    assert_int_equal(request.refund_all(), 0);
    assert_int_equal(used(full), 10);
    assert_int_equal(used(other), 1);
}

void test_the_fallback_is_refunded_and_not_redis(void**) {
    Scene scene;
    const Zone local(kPolicy, layout_of(kPolicy), kMegabyteZone, true);
    scene.lose_first();
    Request request({scene.in_first(OnError::kLocal, &local)});
    assert_int_equal(request.at_once(), Progress::kAdmitted);
    assert_int_equal(request.decided_by(0), DecidedBy::kFallback);
    assert_int_equal(used(local), 1);
    assert_int_equal(request.refund_all(), 0);
    assert_int_equal(used(local), 0);
    std::uint64_t from = 0;
    assert_null(local->next_unsent(&from, kProcess).state);
}

void test_what_has_drained_is_not_given_back(void**) {
    const Policy policy = policy_of(Algorithm::kTokenBucket, "60r/m");
    const Zone zone(policy);
    Request drained({{&zone}});
    assert_int_equal(drained.at_once(), Progress::kAdmitted);
    wall_clock += kSecond;
    use(zone, 3);
    assert_int_equal(drained.refund_all(), 0);
    assert_int_equal(used(zone), 3);
    wall_clock -= kSecond;
}

void test_redis_learns_which_charge_to_undo(void**) {
    Scene scene;
    TestLimit limit = scene.in_first();
    limit.cost = 4;
    Request request({limit});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(request.refund_all(), 0);
    assert_true(scene.loop.run_until([&] { return scene.first_server.refunds().size() == 1; }));
    const SeenGroup group = scene.first_server.refunds()[0];
    assert_int_equal(group.kind, kUndoRequest);
    assert_int_equal(group.limits[0].cost, 4);
    assert_int_equal(group.limits[0].charge.cost, 4);
    assert_int_equal(group.limits[0].charge.at, request.decided_at());
}

void test_nothing_is_refunded_where_rejected_requests_count(void**) {
    Policy counting = kPolicy;
    counting.count_all = true;
    const Zone zone(counting);
    Request request({{&zone}});
    assert_int_equal(request.refund_all(), 1);
    assert_int_equal(used(zone), 1);
}

void test_a_denial_is_forgotten_with_the_charge_that_may_have_caused_it(void**) {
    Scene scene;
    Request request({scene.cached()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    always_reject(&scene.first_server);
    const Request denied({scene.cached()});
    assert_int_equal(denied.in_the_end(&scene.loop), Progress::kRejected);
    const Request cached({scene.cached()});
    assert_int_equal(cached.at_once(), Progress::kRejected);
    assert_int_equal(request.refund_all(), 0);
    const Request asked({scene.cached()});
    assert_int_equal(asked.in_the_end(&scene.loop), Progress::kRejected);
}

// What a request turned out to cost is charged once.
void test_a_limit_in_memory_is_settled_once(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const std::uint64_t actual : {0, 1, 3, 5}) {
            Policy policy = policy_of(algorithm, "10r/m");
            policy.burst = policy.capacity = 9;
            policy.overdraft = kOneMore;
            const Zone zone(policy);
            use(zone, 2);
            TestLimit limit = {&zone};
            limit.cost = 3;
            Request request({limit});
            assert_true(request.settle(0, actual));
            assert_int_equal(used(zone), 2 + actual);
            assert_true(request.settle(0, 9));
            assert_int_equal(request.refund_all(), 0);
            assert_int_equal(used(zone), 2 + actual);
        }
    }
}

void test_a_rejected_request_is_not_settled(void**) {
    const Zone full(kPolicy);
    use(full, 10);
    Request request({{&full}});
    assert_true(request.settle(0, 5));
    assert_true(request.settle(0, 0));
    assert_int_equal(used(full), 10);
}

void test_a_limit_in_redis_is_settled_by_one_group(void**) {
    Scene scene;
    for (const std::uint64_t actual : {1, 4, 9}) {
        TestLimit limit = scene.in_first();
        limit.cost = 4;
        Request request({limit});
        assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
        const std::size_t before = scene.first_server.groups();
        assert_true(request.settle(0, actual));
        assert_true(request.settle(0, actual + 1));
        if (actual == 4) {
            scene.loop.run_for(10);
            assert_int_equal(scene.first_server.groups(), before);
            continue;
        }
        assert_true(scene.loop.run_until([&] { return scene.first_server.groups() == before + 1; }));
        const SeenGroup& group = scene.first_server.calls.back().groups.back();
        assert_int_equal(group.kind, actual == 1 ? kUndo : kOverdraw);
        assert_int_equal(group.limits[0].cost, actual == 1 ? 3 : 5);
        assert_int_equal(group.limits[0].charge.cost, actual == 1 ? 4 : 0);
    }
}

// No request waits for a correction, so it is sent with the next check.
void test_a_settled_charge_joins_the_call_of_the_next_check(void**) {
    Scene scene;
    TestLimit limit = scene.in_first();
    limit.cost = 4;
    Request request({limit});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    const std::size_t calls = scene.first_server.calls.size();
    assert_true(request.settle(0, 1));
    const Request next({limit});
    assert_int_equal(next.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(scene.first_server.calls.size(), calls + 1);
    const auto& groups = scene.first_server.calls.back().groups;
    assert_int_equal(groups.size(), 2);
    assert_int_equal(groups[0].kind, kUndo);
    assert_int_equal(groups[1].kind, kDecide);
}

// A turn of the loop ends between the correction and the check.
void test_a_settled_charge_waits_for_a_check_of_a_later_turn(void**) {
    Scene scene;
    TestLimit limit = scene.in_first();
    limit.cost = 4;
    Request request({limit});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    const std::size_t calls = scene.first_server.calls.size();
    assert_true(request.settle(0, 9));
    scene.loop.run_for(0);
    assert_int_equal(scene.first_server.calls.size(), calls);
    const Request next({limit});
    assert_int_equal(next.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(scene.first_server.calls.size(), calls + 1);
    assert_int_equal(scene.first_server.calls.back().groups[0].kind, kOverdraw);
    assert_int_equal(scene.first_server.calls.back().groups.size(), 2);
}

// Without Redis a charge stays, unless the fallback can charge what is missing.
void test_without_redis_a_charge_stays(void**) {
    Scene scene;
    const Zone local(kPolicy, layout_of(kPolicy), kMegabyteZone, true);
    Request open({scene.in_first()});
    Request fallback({scene.in_first(OnError::kLocal, &local)});
    assert_int_equal(open.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(fallback.in_the_end(&scene.loop), Progress::kAdmitted);
    scene.lose_first();
    assert_false(open.settle(0, 3));
    const std::uint64_t before = used(local);
    assert_true(fallback.settle(0, 3));
    assert_int_equal(used(local), before + 2);
}

// A correction of what alice has used, without a request.
struct Corrected {
    Corrected(const Zone& table, std::uint64_t cost)
        : zone{"api",          layout_of(table.policy()),
               &table.table(), nullptr,
               nullptr,        nullptr,
               nullptr,        kSecond,
               OnError::kOpen} {
        limit.zone = &zone;
        limit.policy = &table.policy();
        limit.client = "alice";
        limit.cost = cost;
    }

    static bool charge(const Zone& table, std::uint64_t cost) {
        return charge_here(Corrected(table, cost).limit, kProcess, [] { return wall_clock; });
    }
    static std::uint64_t give_back(const Zone& table, std::uint64_t cost) {
        return give_back_here(Corrected(table, cost).limit, kProcess, [] { return wall_clock; });
    }
    static void follow(const Zone& table, std::uint64_t remaining) {
        Decision said = {};
        said.allowed = true;
        said.remaining = remaining;
        follow_here(Corrected(table, 1).limit, said, kProcess, [] { return wall_clock; });
    }

    StoreZone zone;
    Limit limit = {};
};

void test_a_client_is_charged_beyond_its_limit_and_given_back_at_most_all(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Policy policy = policy_of(algorithm, "10r/m");
        policy.burst = 9;
        policy.overdraft = kOneMore;
        const Zone zone(policy);
        assert_int_equal(Corrected::give_back(zone, 3), 0);
        assert_int_equal(used(zone), 0);
        assert_true(Corrected::charge(zone, 7));
        assert_int_equal(used(zone), 7);
        assert_true(Corrected::charge(zone, 1000));
        assert_int_equal(Corrected::give_back(zone, 10), 0);
        assert_int_equal(used(zone), 10);  // ten were owed
        assert_int_equal(Corrected::give_back(zone, 1), 0);
        assert_int_equal(used(zone), 9);
        assert_int_equal(Corrected::give_back(zone, 1000), 0);
        assert_int_equal(used(zone), 0);
        assert_int_equal(Corrected::give_back(zone, 1), 0);
        assert_int_equal(used(zone), 0);
    }
}

void test_redis_gives_back_what_was_sent(void**) {
    const Zone zone(kPolicy, layout_of(kPolicy), kMegabyteZone, true);
    assert_int_equal(Corrected::give_back(zone, 3), 3);  // this instance does not know the client
    assert_true(Corrected::charge(zone, 6));
    const auto unsent = [&](bool sends) {
        const Slot slot = zone->find(zone->hash("alice"), kProcess);
        UnsentCount& count = zone->unsent_of(slot);
        const std::uint64_t amount = count.unsent();
        if (sends) {
            count.send(amount, 1, 1, wall_clock);
            count.arrive();
        }
        Table::keep(slot, kProcess);
        return amount;
    };
    assert_int_equal(unsent(true), 6);
    assert_true(Corrected::charge(zone, 2));
    assert_int_equal(Corrected::give_back(zone, 1), 0);
    assert_int_equal(unsent(false), 1);
    assert_int_equal(Corrected::give_back(zone, 4), 3);
    assert_int_equal(unsent(false), 0);
    assert_int_equal(used(zone), 3);
}

void test_a_table_follows_redis_after_a_refund(void**) {
    const Zone zone(kPolicy, layout_of(kPolicy), kMegabyteZone, true);
    use(zone, 6);
    Corrected::follow(zone, 9);
    assert_int_equal(used(zone), 6);  // Redis does not know of the requests yet
    const Slot slot = zone->find(zone->hash("alice"), kProcess);
    zone->unsent_of(slot).take_unsent();
    Table::keep(slot, kProcess);
    Corrected::follow(zone, 9);
    assert_int_equal(used(zone), 1);
}

// The connection has ended, and no call has failed yet: a call could be lost.
void test_without_a_connection_the_fallback_charges_what_is_missing(void**) {
    Scene scene;
    const Zone local(kPolicy, layout_of(kPolicy), kMegabyteZone, true);
    Request request({scene.in_first(OnError::kLocal, &local)});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    scene.first_server.server.refuse();
    scene.first_server.server.hang_up();
    assert_true(scene.loop.run_until([&] { return scene.loop.attached == 1; }));
    assert_true(scene.first->available(0));
    const std::uint64_t before = used(local);
    assert_true(request.settle(0, 3));
    assert_int_equal(used(local), before + 2);
    std::uint64_t from = 0;
    const Slot slot = local->next_unsent(&from, kProcess);
    assert_non_null(slot.state);
    assert_int_equal(local->unsent_of(slot).unsent(), 2);
    Table::keep(slot, kProcess);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_every_algorithm_in_memory_gets_its_charge_back),
        cmocka_unit_test(test_limits_in_memory_and_in_two_redis_are_refunded),
        cmocka_unit_test(test_any_number_of_limits_is_refunded),
        cmocka_unit_test(test_a_rejected_request_is_not_refunded),
        cmocka_unit_test(test_the_fallback_is_refunded_and_not_redis),
        cmocka_unit_test(test_what_has_drained_is_not_given_back),
        cmocka_unit_test(test_redis_learns_which_charge_to_undo),
        cmocka_unit_test(test_a_limit_in_memory_is_settled_once),
        cmocka_unit_test(test_a_rejected_request_is_not_settled),
        cmocka_unit_test(test_a_limit_in_redis_is_settled_by_one_group),
        cmocka_unit_test(test_a_settled_charge_joins_the_call_of_the_next_check),
        cmocka_unit_test(test_a_settled_charge_waits_for_a_check_of_a_later_turn),
        cmocka_unit_test(test_without_redis_a_charge_stays),
        cmocka_unit_test(test_without_a_connection_the_fallback_charges_what_is_missing),
        cmocka_unit_test(test_nothing_is_refunded_where_rejected_requests_count),
        cmocka_unit_test(test_a_denial_is_forgotten_with_the_charge_that_may_have_caused_it),
        cmocka_unit_test(test_a_client_is_charged_beyond_its_limit_and_given_back_at_most_all),
        cmocka_unit_test(test_redis_gives_back_what_was_sent),
        cmocka_unit_test(test_a_table_follows_redis_after_a_refund),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
