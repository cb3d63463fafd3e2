// on_error=local: while Redis is unavailable, an instance admits its share of the limit, and Redis is charged
// later.
#include <deque>

#include "fleet/heartbeat.h"
#include "memory/unsent.h"
#include "redis/real_server.h"
#include "requests.h"

namespace rate_limit {
namespace {

// A zone of one instance, with its share of the limit.
struct Instance {
    Instance(const Policy& policy, const StateLayout& layout, const Share& share)
        : zone(policy, layout, size_with_unsent(layout, 8), true), membership(1) {
        membership.set_share(share);
    }
    Instance(const Policy& policy, const Share& share) : Instance(policy, layout_of(policy), share) {}

    TestLimit limit(const Scene& scene) const {
        TestLimit limit = scene.in_first(OnError::kLocal, &zone);
        limit.membership = &membership;
        return limit;
    }

    Zone zone;
    Membership membership;
};

// How many of `requests` requests the fallback admits. The fallback must decide all of them.
unsigned admitted(Scene* scene, const TestLimit& limit, unsigned requests) {
    unsigned count = 0;
    for (unsigned i = 0; i < requests; i++) {
        const Request request({limit});
        const Progress progress =
            request.at_once() == Progress::kWaiting ? request.in_the_end(&scene->loop) : request.at_once();
        assert_int_equal(request.decided_by(0), DecidedBy::kFallback);
        count += progress == Progress::kAdmitted ? 1 : 0;
    }
    return count;
}

void test_shares_add_up_to_the_limit(void**) {
    Scene scene;
    scene.lose_first();
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = policy_of(algorithm, "10r/d");
        const bool bursts = algorithm == Algorithm::kLeakyBucket || algorithm == Algorithm::kGcra;
        for (const std::uint32_t instances : {1U, 2U, 3U, 7U, 10U}) {
            unsigned total = 0;
            for (std::uint32_t rank = 0; rank < instances; rank++) {
                const Instance instance(policy, {instances, rank});
                const unsigned count = admitted(&scene, instance.limit(scene), 12);
                const Policy own = part_of(policy, {instances, rank});
                assert_int_equal(count, capacity_of(own, own.rates.rates[0]));
                assert_int_equal(unsent_of(instance.zone, "alice").unsent, count);
                total += count;
            }
            assert_int_equal(total, bursts ? 9 + instances : 10);
        }
    }
}

void test_a_rate_below_the_number_of_instances_is_shared(void**) {
    Scene scene;
    scene.lose_first();
    const Policy policy = policy_of(Algorithm::kFixedWindow, "1r/m");
    const Micros before = wall_clock;
    wall_clock = kMidnight;
    const Instance instance(policy, {3, 2});
    unsigned count = 0;
    for (unsigned second = 0; second < 360; second++) {
        count += admitted(&scene, instance.limit(scene), 1);
        wall_clock += kSecond;
    }
    assert_int_equal(count, 2);
    wall_clock = before;
}

void test_a_decision_reports_the_share(void**) {
    Scene scene;
    scene.lose_first();
    const Instance instance(policy_of(Algorithm::kSlidingWindow, "10r/m"), {4, 0});
    const Request first({instance.limit(scene)});
    assert_int_equal(first.at_once(), Progress::kAdmitted);
    assert_int_equal(first.decision(0).limit, 3);
    assert_int_equal(first.decision(0).remaining, 2);
    assert_int_equal(first.error(), Error::kUnavailable);
}

void test_a_changed_share_holds_at_once(void**) {
    Scene scene;
    scene.lose_first();
    Instance instance(policy_of(Algorithm::kSlidingWindow, "10r/m"), {5, 0});
    assert_int_equal(admitted(&scene, instance.limit(scene), 5), 2);
    instance.membership.set_share({2, 1});
    assert_int_equal(admitted(&scene, instance.limit(scene), 5), 3);
    instance.membership.set_share({1, 0});
    assert_int_equal(admitted(&scene, instance.limit(scene), 9), 5);
    instance.membership.set_share({10, 0});
    assert_int_equal(admitted(&scene, instance.limit(scene), 5), 0);
    assert_int_equal(unsent_of(instance.zone, "alice").unsent, 10);
}

void test_without_a_membership_the_share_is_the_whole_limit(void**) {
    Scene scene;
    scene.lose_first();
    const Instance instance(policy_of(Algorithm::kSlidingWindow, "10r/m"), {5, 0});
    TestLimit limit = instance.limit(scene);
    limit.membership = nullptr;
    assert_int_equal(admitted(&scene, limit, 12), 10);
}

void test_an_unsent_count_has_the_whole_rates(void**) {
    Scene scene;
    scene.lose_first();
    Policy policy = policy_of(Algorithm::kSlidingWindow, "off");
    const StateLayout layout = layout_of(policy, 2, 0);
    const Instance instance(policy, layout, {3, 0});
    policy.rates = rates_of("2r/m,30r/h");
    TestLimit limit = instance.limit(scene);
    limit.policy = &policy;
    assert_int_equal(admitted(&scene, limit, 3), 1);
    const UnsentCopy unsent = unsent_of(instance.zone, "alice");
    assert_int_equal(unsent.unsent, 1);
    assert_int_equal(unsent.rates.size, 2);
    assert_int_equal(unsent.rates.rates[0].count, 2);
    assert_int_equal(unsent.rates.rates[0].period, kMinute);
    assert_int_equal(unsent.rates.rates[1].count, 30);
}

void test_an_unsent_count_has_the_clients_name_in_redis(void**) {
    Scene scene;
    scene.lose_first();
    const Instance instance(kPolicy, {1, 0});
    const std::string name(200, 'x');
    TestLimit limit = instance.limit(scene);
    limit.client = name.c_str();
    limit.cost = 4;
    assert_int_equal(admitted(&scene, limit, 1), 1);
    NameRoom room;
    const std::string in_redis(short_name(name, &room));
    const UnsentCopy unsent = unsent_of(instance.zone, in_redis);
    assert_string_equal(unsent.name.c_str(), in_redis.c_str());
    assert_int_equal(unsent.unsent, 4);
}

void test_requests_that_redis_decides_or_another_limit_rejects_leave_no_unsent_count(void**) {
    Scene scene;
    const Instance instance(kPolicy, {2, 0});
    const Request by_redis({instance.limit(scene)});
    assert_int_equal(by_redis.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(by_redis.decided_by(0), DecidedBy::kRedis);
    assert_int_equal(unsent_of(instance.zone, "alice").unsent, 0);
    scene.lose_first();
    always_reject(&scene.second_server);
    const Request rejected({instance.limit(scene), scene.in_second()});
    assert_int_equal(rejected.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(unsent_of(instance.zone, "alice").unsent, 0);
    const Request look([&] {
        TestLimit limit = instance.limit(scene);
        limit.cost = 0;
        return std::vector<TestLimit>{limit};
    }());
    assert_int_equal(look.at_once(), Progress::kAdmitted);
    assert_int_equal(unsent_of(instance.zone, "alice").unsent, 0);
}

void test_a_rejected_request_adds_to_the_unsent_count_where_it_counts(void**) {
    Scene scene;
    scene.lose_first();
    Policy policy = policy_of(Algorithm::kFixedWindow, "10r/d");
    policy.count_all = true;
    const Instance instance(policy, {5, 0});
    assert_int_equal(admitted(&scene, instance.limit(scene), 6), 2);
    assert_int_equal(unsent_of(instance.zone, "alice").unsent, 6);
}

// A table with unsent counts follows the clock of Redis, but the fallback uses this machine's clock.
void test_the_fallback_uses_this_machines_clock(void**) {
    Scene scene;
    scene.lose_first();
    const Instance instance(policy_of(Algorithm::kFixedWindow, "10r/m"), {1, 0});
    instance.zone->unsent_counts().set_ahead(20 * kSecond);
    const Request request({instance.limit(scene)});
    assert_int_equal(request.decision(0).reset_after, 30 * kSecond);
    // A zone in memory uses the clock of Redis.
    const Request other({{&instance.zone}});
    assert_int_equal(other.decision(0).reset_after, 10 * kSecond);
}

void test_each_zone_has_its_own_share(void**) {
    Scene scene;
    scene.lose_first();
    const Instance wide(policy_of(Algorithm::kSlidingWindow, "100r/d"), {3, 0});
    const Instance narrow(policy_of(Algorithm::kTokenBucket, "10r/d"), {2, 1});
    const Zone memory(policy_of(Algorithm::kSlidingWindow, "7r/d"));
    TestLimit second = narrow.limit(scene);
    second.name = "narrow";
    unsigned count = 0;
    for (unsigned i = 0; i < 12; i++) {
        const Request request({wide.limit(scene), second, {&memory}});
        count += request.at_once() == Progress::kAdmitted ? 1 : 0;
    }
    assert_int_equal(count, 5);
    assert_int_equal(unsent_of(wide.zone, "alice").unsent, 5);
    assert_int_equal(unsent_of(narrow.zone, "alice").unsent, 5);
    assert_int_equal(memory.used(memory->hash("alice")), 5);
}

// Instances take turns at sending requests, `before` of them before an outage of Redis and many more during
// it. Returns how many are admitted.
unsigned admitted_around_an_outage(const Policy& policy, unsigned instances, unsigned before) {
    redis::TestLoop loop;
    redis::RealServer server;
    std::deque<Instance> fleet;
    std::deque<TestBatcher> batchers;
    for (unsigned rank = 0; rank < instances; rank++) {
        fleet.emplace_back(policy, Share{instances, rank});
        batchers.emplace_back(&loop, server.path());
    }
    unsigned count = 0;
    const auto ask = [&](unsigned number) {
        const unsigned index = number % instances;
        TestLimit limit = {&fleet[index].zone, batchers[index].get(), OnError::kLocal};
        limit.membership = &fleet[index].membership;
        const Request request({limit});
        const Progress progress =
            request.at_once() == Progress::kWaiting ? request.in_the_end(&loop) : request.at_once();
        count += progress == Progress::kAdmitted ? 1 : 0;
    };
    for (unsigned i = 0; i < before; i++) {
        ask(i);
    }
    assert_int_equal(count, std::min(before, 100U));
    server.stop();
    for (unsigned i = 0; i < 150 * instances; i++) {
        ask(i);
    }
    return count;
}

void test_the_fallback_continues_from_the_last_reply_of_redis(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Policy policy = policy_of(algorithm, "100r/366d");
        if (algorithm == Algorithm::kLeakyBucket || algorithm == Algorithm::kGcra) {
            policy.burst = 99;
        }
        for (const unsigned instances : {1U, 3U}) {
            for (const unsigned before : {40U, 99U, 130U}) {
                const unsigned count = admitted_around_an_outage(policy, instances, before);
                // Each instance rounds its share, and knows only the last reply that it got itself.
                assert_in_range(count, 100 - instances, 100 + 2 * instances);
            }
        }
    }
}

void test_the_fallback_table_follows_the_remaining_requests_of_redis(void**) {
    Scene scene;
    const Instance instance(policy_of(Algorithm::kSlidingWindow, "10r/m"), {1, 0});
    scene.first_server.decide = [](const SeenLimit&) { return admit(2); };
    const Request first({instance.limit(scene)});
    assert_int_equal(first.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(used(instance.zone), 8);
    scene.first_server.decide = [](const SeenLimit&) { return admit(7); };
    const Request second({instance.limit(scene)});
    assert_int_equal(second.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(used(instance.zone), 3);
    always_reject(&scene.first_server);
    const Request third({instance.limit(scene)});
    assert_int_equal(third.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(used(instance.zone), 10);
}

// After an outage, Redis lacks the requests that this instance has admitted, and then those of other
// instances.
void test_requests_that_redis_does_not_know_yet_are_not_admitted_twice(void**) {
    Scene scene;
    const Instance instance(policy_of(Algorithm::kSlidingWindow, "10r/m"), {1, 0});
    scene.lose_first();
    assert_int_equal(admitted(&scene, instance.limit(scene), 12), 10);
    scene.first_server.server.listen();
    assert_true(scene.loop.run_until([&] { return scene.first->available(0); }));
    const Request early({instance.limit(scene)});
    assert_int_equal(early.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(early.decided_by(0), DecidedBy::kFallback);
    assert_false(early.decision(0).allowed);
    assert_int_equal(early.decision(0).limit, 10);
    assert_true(scene.loop.run_until([&] { return scene.first_server.refunds().size() == 1; }));
    std::uint64_t from = 0;
    const Slot slot = instance.zone->next_unsent(&from, kProcess);
    assert_int_equal(instance.zone->unsent_of(slot).take_unsent(), 10);
    Table::keep(slot, kProcess);
    steady_clock += kFallbackLasts - 1;
    const Request unsettled({instance.limit(scene)});
    assert_int_equal(unsettled.in_the_end(&scene.loop), Progress::kRejected);
    steady_clock += 1;
    const Request settled({instance.limit(scene)});
    assert_int_equal(settled.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(settled.decided_by(0), DecidedBy::kRedis);
}

// The other instances send their unsent counts only when Redis is back, however long the outage was and
// however long ago this instance has admitted a request.
void test_unsent_counts_of_others_after_a_long_outage_are_not_admitted_twice(void**) {
    Scene scene;
    Instance instance(policy_of(Algorithm::kSlidingWindow, "10r/d"), {1, 0});
    scene.lose_first();
    assert_int_equal(admitted(&scene, instance.limit(scene), 12), 10);
    std::uint64_t from = 0;
    const Slot slot = instance.zone->next_unsent(&from, kProcess);
    assert_int_equal(instance.zone->unsent_of(slot).take_unsent(), 10);
    Table::keep(slot, kProcess);
    instance.membership.set_away();
    steady_clock += 5 * kFallbackLasts;
    scene.first_server.server.listen();
    assert_true(scene.loop.run_until([&] { return scene.first->available(0); }));
    const Request early({instance.limit(scene)});
    assert_int_equal(early.in_the_end(&scene.loop), Progress::kRejected);
    instance.membership.set_answering(steady_clock);
    steady_clock += kFallbackLasts - 1;
    instance.membership.set_answering(steady_clock);
    const Request unsettled({instance.limit(scene)});
    assert_int_equal(unsettled.in_the_end(&scene.loop), Progress::kRejected);
    steady_clock += 1;
    const Request settled({instance.limit(scene)});
    assert_int_equal(settled.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(settled.decided_by(0), DecidedBy::kRedis);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_shares_add_up_to_the_limit),
        cmocka_unit_test(test_a_rate_below_the_number_of_instances_is_shared),
        cmocka_unit_test(test_a_decision_reports_the_share),
        cmocka_unit_test(test_a_changed_share_holds_at_once),
        cmocka_unit_test(test_without_a_membership_the_share_is_the_whole_limit),
        cmocka_unit_test(test_an_unsent_count_has_the_whole_rates),
        cmocka_unit_test(test_an_unsent_count_has_the_clients_name_in_redis),
        cmocka_unit_test(test_requests_that_redis_decides_or_another_limit_rejects_leave_no_unsent_count),
        cmocka_unit_test(test_a_rejected_request_adds_to_the_unsent_count_where_it_counts),
        cmocka_unit_test(test_the_fallback_uses_this_machines_clock),
        cmocka_unit_test(test_each_zone_has_its_own_share),
        cmocka_unit_test(test_the_fallback_continues_from_the_last_reply_of_redis),
        cmocka_unit_test(test_the_fallback_table_follows_the_remaining_requests_of_redis),
        cmocka_unit_test(test_requests_that_redis_does_not_know_yet_are_not_admitted_twice),
        cmocka_unit_test(test_unsent_counts_of_others_after_a_long_outage_are_not_admitted_twice),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
