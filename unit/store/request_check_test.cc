// A request with limits in memory and in Redis: they are decided together, and all are charged or none.
#include "redis/real_server.h"
#include "requests.h"

namespace rate_limit {
namespace {

void test_a_request_without_limits_is_admitted(void**) {
    const Request request({});
    assert_int_equal(request.at_once(), Progress::kAdmitted);
}

void test_memory_alone_answers_at_once(void**) {
    const Zone zone(kPolicy);
    for (unsigned i = 0; i < 12; i++) {
        const Request request({{&zone}});
        assert_int_equal(request.at_once(), i < 10 ? Progress::kAdmitted : Progress::kRejected);
        assert_int_equal(request.decided_by(0), DecidedBy::kMemory);
        assert_int_equal(request.decision(0).remaining, i < 10 ? 9 - i : 0);
        assert_int_equal(request.decided_at(), wall_clock);
        assert_int_equal(request.error(), Error::kNone);
    }
}

void test_redis_answers_later_and_by_its_own_clock(void**) {
    Scene scene;
    scene.first_server.decide = [](const SeenLimit&) { return admit(4, 33 * kSecond); };
    const Request admitted({scene.in_first()});
    assert_int_equal(admitted.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(admitted.decided_by(0), DecidedBy::kRedis);
    assert_int_equal(admitted.decision(0).remaining, 4);
    assert_int_equal(admitted.decision(0).reset_after, 33 * kSecond);
    assert_int_equal(admitted.decided_at(), ScriptServer::kTime);
    always_reject(&scene.first_server);
    const Request rejected({scene.in_first()});
    assert_int_equal(rejected.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(rejected.decision(0).retry_after, 30 * kSecond);
    assert_int_equal(scene.first_server.refunds().size(), 0);
}

void test_limits_of_one_redis_are_one_group(void**) {
    Scene scene;
    std::vector<TestLimit> limits;
    std::vector<std::string> names;
    for (unsigned i = 0; i < kMaxLimits; i++) {
        names.push_back("zone" + std::to_string(i));
    }
    for (unsigned i = 0; i < kMaxLimits; i++) {
        limits.push_back(scene.in_first());
        limits.back().name = names[i].c_str();
        limits.back().cost = i + 1;
    }
    unsigned count = 0;
    scene.first_server.decide = [&](const SeenLimit&) { return admit(++count); };
    const Request request(limits);
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(scene.first_server.calls.size(), 1);
    assert_int_equal(scene.first_server.calls[0].groups.size(), 1);
    const std::vector<SeenLimit>& seen = scene.first_server.calls[0].groups[0].limits;
    for (unsigned i = 0; i < kMaxLimits; i++) {
        assert_string_equal(seen[i].key.c_str(),
                            ("rate_limit:" + names[i] + ":sliding_window:{alice}").c_str());
        assert_int_equal(seen[i].cost, i + 1);
        assert_int_equal(request.decision(i).remaining, i + 1);
    }
}

void test_redis_is_not_called_if_memory_rejects(void**) {
    Scene scene;
    use(scene.zone, 10);
    const Request request({scene.in_first(), scene.in_memory(), scene.in_second()});
    assert_int_equal(request.at_once(), Progress::kRejected);
    scene.loop.run_for(10);
    assert_int_equal(scene.first_server.calls.size() + scene.second_server.calls.size(), 0);
    assert_int_equal(request.decided_by(0), DecidedBy::kNobody);
    assert_int_equal(request.decided_by(1), DecidedBy::kMemory);
    assert_int_equal(request.decided_by(2), DecidedBy::kNobody);
    assert_int_equal(used(scene.zone), 10);
}

void test_memory_is_charged_only_after_redis_has_admitted(void**) {
    Scene scene;
    TestLimit in_memory = scene.in_memory();
    in_memory.cost = 3;
    const Request request({in_memory, scene.in_first(), scene.in_second()});
    assert_int_equal(request.at_once(), Progress::kWaiting);
    assert_int_equal(scene.zone->clients(), 0);
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(used(scene.zone), 3);
    assert_int_equal(request.decided_by(0), DecidedBy::kMemory);
    assert_int_equal(request.decision(0).remaining, 7);
    assert_int_equal(request.decided_by(1), DecidedBy::kRedis);
    assert_int_equal(scene.first_server.refunds().size() + scene.second_server.refunds().size(), 0);
}

void test_memory_is_not_charged_if_redis_rejects(void**) {
    Scene scene;
    always_reject(&scene.first_server);
    const Request request({scene.in_memory(), scene.in_first()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(scene.zone->clients(), 0);
    assert_int_equal(request.decided_by(1), DecidedBy::kRedis);
    assert_true(request.decision(0).allowed);
    assert_int_equal(scene.first_server.refunds().size(), 0);
}

void test_a_rejection_by_redis_counts_in_memory_where_rejected_requests_count(void**) {
    Scene scene;
    scene.zone.policy().count_all = true;
    always_reject(&scene.first_server);
    TestLimit in_memory = scene.in_memory();
    in_memory.cost = 4;
    const Request request({in_memory, scene.in_first()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(used(scene.zone), 4);
    assert_int_equal(request.decision(0).remaining, 6);
}

void test_redis_is_refunded_if_memory_rejects_later(void**) {
    Scene scene;
    TestLimit in_first = scene.in_first();
    in_first.cost = 7;
    TestLimit look = scene.in_second();
    look.cost = 0;
    const Request request({scene.in_memory(), in_first, scene.in_second(), look});
    use(scene.zone, 10);
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(request.decided_by(0), DecidedBy::kMemory);
    assert_false(request.decision(0).allowed);
    assert_true(scene.loop.run_until(
        [&] { return !scene.first_server.refunds().empty() && !scene.second_server.refunds().empty(); }));
    scene.loop.run_for(10);
    const std::vector<SeenGroup> refunds = scene.first_server.refunds();
    assert_int_equal(refunds.size(), 1);
    assert_int_equal(refunds[0].limits.size(), 1);
    assert_int_equal(refunds[0].limits[0].cost, 7);
    assert_string_equal(refunds[0].limits[0].key.c_str(), "rate_limit:api:sliding_window:{alice}");
    assert_int_equal(scene.second_server.refunds().size(), 1);
    assert_int_equal(scene.second_server.refunds()[0].limits.size(), 1);
    assert_int_equal(used(scene.zone), 10);
}

void test_one_redis_is_called_after_the_other(void**) {
    Scene scene;
    scene.first_server.server.answers = false;
    const std::size_t before = scene.first_server.server.count("EVALSHA");
    const Request request({scene.in_second(), scene.in_first(), scene.in_second()});
    assert_true(scene.loop.run_until([&] { return scene.first_server.server.count("EVALSHA") > before; }));
    assert_int_equal(scene.second_server.calls.size(), 1);
    assert_int_equal(scene.second_server.calls[0].groups[0].limits.size(), 2);
    scene.first_server.server.say(redis::bulk(packed(5, 8) + admit()));
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(scene.first_server.refunds().size() + scene.second_server.refunds().size(), 0);
}

void test_the_first_redis_is_refunded_if_the_second_rejects(void**) {
    Scene scene;
    always_reject(&scene.second_server);
    TestLimit in_first = scene.in_first();
    in_first.cost = 3;
    const Request request({in_first, scene.in_second(), scene.in_memory(), scene.in_first()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_true(scene.loop.run_until([&] { return scene.first_server.refunds().size() == 1; }));
    scene.loop.run_for(10);
    assert_int_equal(scene.first_server.refunds().size(), 1);
    assert_int_equal(scene.first_server.refunds()[0].limits.size(), 2);
    assert_int_equal(scene.first_server.refunds()[0].limits[0].cost, 3);
    assert_int_equal(scene.second_server.refunds().size(), 0);
    assert_int_equal(scene.zone->clients(), 0);
    assert_false(request.decision(1).allowed);
}

void test_a_rejection_elsewhere_counts_in_redis_where_rejected_requests_count(void**) {
    Scene scene;
    Policy counting = kPolicy;
    counting.count_all = true;
    TestLimit counted = scene.in_second();
    counted.policy = &counting;
    counted.cost = 3;
    always_reject(&scene.first_server);
    const Request by_redis({scene.in_first(), counted});
    assert_int_equal(by_redis.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(by_redis.decided_by(1), DecidedBy::kNobody);
    assert_true(scene.loop.run_until([&] { return scene.second_server.groups() == 1; }));
    use(scene.zone, 10);
    const Request by_memory({scene.in_memory(), counted});
    assert_int_equal(by_memory.at_once(), Progress::kRejected);
    assert_true(scene.loop.run_until([&] { return scene.second_server.groups() == 2; }));
    assert_int_equal(scene.second_server.calls.back().groups[0].limits[0].cost, 3);
    assert_int_equal(scene.second_server.refunds().size(), 0);
}

// Redis finds out what of a charge still counts, by its time.
void test_a_refund_has_the_time_of_its_charge_unless_the_charge_stays(void**) {
    const Policy bucket = policy_of(Algorithm::kTokenBucket, "10r/m");
    Policy counting = policy_of(Algorithm::kFixedWindow, "10r/m");
    counting.count_all = true;
    for (const Policy* policy : {&kPolicy, &bucket, static_cast<const Policy*>(&counting)}) {
        Scene scene;
        TestLimit charged = scene.in_first();
        charged.policy = policy;
        charged.cost = 2;
        scene.second_server.decide = [&](const SeenLimit&) {
            steady_clock += kMinute;
            return reject();
        };
        const Request request({charged, scene.in_second()});
        assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
        scene.loop.run_for(10);
        const std::vector<SeenGroup> refunds = scene.first_server.refunds();
        assert_int_equal(refunds.size(), policy == &counting ? 0 : 1);
        if (policy != &counting) {
            assert_int_equal(refunds[0].kind, kUndoRequest);
            assert_int_equal(refunds[0].limits[0].charge.cost, 2);
            assert_int_equal(refunds[0].limits[0].charge.at, request.decided_at(0));
        }
    }
}

void test_the_second_redis_is_not_called_if_the_first_rejects(void**) {
    Scene scene;
    always_reject(&scene.first_server);
    const Request request({scene.in_first(), scene.in_second()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    scene.loop.run_for(10);
    assert_int_equal(scene.second_server.calls.size(), 0);
    assert_int_equal(request.decided_by(1), DecidedBy::kNobody);
    assert_int_equal(scene.first_server.refunds().size(), 0);
}

void test_with_two_real_servers_and_memory_the_lowest_limit_holds_and_no_rejected_request_is_charged(void**) {
    redis::TestLoop loop;
    const redis::RealServer servers[2];
    const TestBatcher wide(&loop, servers[0].path());
    const TestBatcher narrow(&loop, servers[1].path());
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy hundred = policy_of(algorithm, "100r/d");
        const Policy seven = policy_of(algorithm, "7r/d");
        const Zone zone(hundred);
        TestLimit in_wide = {nullptr, wide.get()};
        in_wide.policy = &hundred;
        TestLimit in_narrow = {nullptr, narrow.get()};
        in_narrow.policy = &seven;
        std::deque<Request> requests;
        for (unsigned i = 0; i < 20; i++) {
            requests.emplace_back(std::vector<TestLimit>{{&zone}, in_wide, in_narrow});
        }
        unsigned admitted = 0;
        for (const Request& request : requests) {
            admitted += request.in_the_end(&loop) == Progress::kAdmitted ? 1 : 0;
            if (request.error() != Error::kNone) {
                fail_msg("%s: %s", algorithm_name(algorithm), loop.lines.front().text.c_str());
            }
        }
        assert_int_equal(admitted, 7);
        loop.run_for(20);
        in_wide.cost = in_narrow.cost = 0;
        const Request look({in_wide, in_narrow});
        assert_int_equal(look.in_the_end(&loop), Progress::kAdmitted);
        assert_int_equal(look.decision(0).remaining, 93);
        assert_int_equal(look.decision(1).remaining, 0);
        assert_int_equal(used(zone), 7);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_request_without_limits_is_admitted),
        cmocka_unit_test(test_memory_alone_answers_at_once),
        cmocka_unit_test(test_redis_answers_later_and_by_its_own_clock),
        cmocka_unit_test(test_limits_of_one_redis_are_one_group),
        cmocka_unit_test(test_redis_is_not_called_if_memory_rejects),
        cmocka_unit_test(test_memory_is_charged_only_after_redis_has_admitted),
        cmocka_unit_test(test_memory_is_not_charged_if_redis_rejects),
        cmocka_unit_test(test_a_rejection_by_redis_counts_in_memory_where_rejected_requests_count),
        cmocka_unit_test(test_redis_is_refunded_if_memory_rejects_later),
        cmocka_unit_test(test_one_redis_is_called_after_the_other),
        cmocka_unit_test(test_the_first_redis_is_refunded_if_the_second_rejects),
        cmocka_unit_test(test_a_rejection_elsewhere_counts_in_redis_where_rejected_requests_count),
        cmocka_unit_test(test_a_refund_has_the_time_of_its_charge_unless_the_charge_stays),
        cmocka_unit_test(test_the_second_redis_is_not_called_if_the_first_rejects),
        cmocka_unit_test(
            test_with_two_real_servers_and_memory_the_lowest_limit_holds_and_no_rejected_request_is_charged),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
