// on_error: each value, alone and together with others, while a Redis fails or is unavailable.
#include "requests.h"

namespace rate_limit {
namespace {

void test_open_leaves_out_a_limit_whose_redis_fails(void**) {
    Scene scene;
    Scene::fail(&scene.first_server);
    const Request request({scene.in_first(), scene.in_memory()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(request.error(), Error::kOutOfMemory);
    assert_int_equal(request.decided_by(0), DecidedBy::kNobody);
    assert_int_equal(request.decided_by(1), DecidedBy::kMemory);
    assert_int_equal(used(scene.zone), 1);
}

void test_closed_refuses_and_charges_no_limit(void**) {
    Scene scene;
    Scene::fail(&scene.second_server);
    const Request request({scene.in_first(), scene.in_second(OnError::kClosed), scene.in_memory()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRefused);
    assert_int_equal(request.error(), Error::kOutOfMemory);
    assert_int_equal(scene.zone->clients(), 0);
    assert_true(scene.loop.run_until([&] { return scene.first_server.refunds().size() == 1; }));
    assert_int_equal(scene.second_server.refunds().size(), 0);
}

void test_local_decides_from_memory(void**) {
    Scene scene;
    for (unsigned i = 0; i < 12; i++) {
        scene.first_server.send = [i](const std::string& reply) {
            return i % 4 == 3 ? redis::bulk(reply) : "-OOM command not allowed\r\n";
        };
        const Request request({scene.in_first(OnError::kLocal, &scene.zone)});
        assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
        assert_int_equal(request.decided_by(0), i % 4 == 3 ? DecidedBy::kRedis : DecidedBy::kFallback);
        assert_int_equal(request.decision(0).limit, 10);
    }
    // According to the last reply of Redis, five requests remain.
    assert_int_equal(used(scene.zone), 5);
    Scene::fail(&scene.first_server);
    for (unsigned i = 0; i < 5; i++) {
        const Request last({scene.in_first(OnError::kLocal, &scene.zone)});
        assert_int_equal(last.in_the_end(&scene.loop), Progress::kAdmitted);
    }
    // After five failures the breaker is open, and Redis is no longer called.
    const Request beyond({scene.in_first(OnError::kLocal, &scene.zone)});
    assert_int_equal(beyond.at_once(), Progress::kRejected);
    assert_int_equal(beyond.decided_by(0), DecidedBy::kFallback);
    assert_false(beyond.decision(0).allowed);
    assert_int_equal(used(scene.zone), 10);
}

void test_no_request_waits_for_an_unavailable_redis(void**) {
    Scene scene;
    scene.lose_first();
    const Request open({scene.in_first()});
    assert_int_equal(open.at_once(), Progress::kAdmitted);
    assert_int_equal(open.error(), Error::kUnavailable);
    const Request closed({scene.in_first(OnError::kClosed)});
    assert_int_equal(closed.at_once(), Progress::kRefused);
    assert_int_equal(closed.error(), Error::kUnavailable);
    const Request local({scene.in_first(OnError::kLocal, &scene.zone)});
    assert_int_equal(local.at_once(), Progress::kAdmitted);
    assert_int_equal(local.decided_by(0), DecidedBy::kFallback);
    const Request both({scene.in_first(), scene.in_second()});
    assert_int_equal(both.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(both.error(), Error::kUnavailable);
    assert_int_equal(both.decided_by(1), DecidedBy::kRedis);
}

void test_each_limit_of_a_failing_redis_has_its_own_on_error(void**) {
    Scene scene;
    Scene::fail(&scene.first_server);
    const Request mixed({scene.in_first(), scene.in_first(OnError::kLocal, &scene.zone)});
    assert_int_equal(mixed.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(mixed.decided_by(0), DecidedBy::kNobody);
    assert_int_equal(mixed.decided_by(1), DecidedBy::kFallback);
    assert_int_equal(used(scene.zone), 1);
    const Request refused(
        {scene.in_first(), scene.in_first(OnError::kLocal, &scene.zone), scene.in_first(OnError::kClosed)});
    assert_int_equal(refused.in_the_end(&scene.loop), Progress::kRefused);
    assert_int_equal(used(scene.zone), 1);
}

void test_each_limit_has_the_reason_why_redis_did_not_decide_it(void**) {
    Scene scene;
    Scene::fail(&scene.first_server);
    const Request mixed({scene.in_first(), scene.in_first(OnError::kLocal, &scene.zone), scene.in_second(),
                         scene.in_memory()});
    assert_int_equal(mixed.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(mixed.reason(0), reason_of(Error::kOutOfMemory));
    assert_int_equal(mixed.reason(1), reason_of(Error::kOutOfMemory));
    assert_int_equal(mixed.reason(2), kNoReason);
    assert_int_equal(mixed.reason(3), kNoReason);
    const Request refused({scene.in_first(OnError::kClosed), scene.in_second()});
    assert_int_equal(refused.in_the_end(&scene.loop), Progress::kRefused);
    assert_int_equal(refused.reason(0), reason_of(Error::kOutOfMemory));
    assert_int_equal(refused.reason(1), kNoReason);
}

void test_redis_is_refunded_if_the_fallback_of_another_limit_rejects(void**) {
    Scene scene;
    Scene::fail(&scene.first_server);
    use(scene.zone, 10);
    const Request request({scene.in_second(), scene.in_first(OnError::kLocal, &scene.zone)});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(request.decided_by(0), DecidedBy::kRedis);
    assert_int_equal(request.decided_by(1), DecidedBy::kFallback);
    assert_true(scene.loop.run_until([&] { return scene.second_server.refunds().size() == 1; }));
    assert_int_equal(scene.first_server.refunds().size(), 0);
}

void test_another_redis_is_not_called_after_a_fallback_rejects(void**) {
    Scene scene;
    Scene::fail(&scene.first_server);
    use(scene.zone, 10);
    const Request request({scene.in_first(OnError::kLocal, &scene.zone), scene.in_second()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(request.decided_by(0), DecidedBy::kFallback);
    assert_int_equal(request.decided_by(1), DecidedBy::kNobody);
    scene.loop.run_for(10);
    assert_int_equal(scene.second_server.groups(), 0);
}

void test_a_fallback_is_not_charged_if_another_redis_rejects(void**) {
    Scene scene;
    Scene::fail(&scene.first_server);
    always_reject(&scene.second_server);
    const Request request({scene.in_first(OnError::kLocal, &scene.zone), scene.in_second()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(used(scene.zone), 0);
}

// A zone whose slots are all locked by other processes.
struct Occupied {
    Zone zone = small_zone(kPolicy, 1);

    Occupied() {
        for (unsigned i = 0, held = 0; held < 16; i++) {
            const Slot slot = zone->acquire(client_number(i), kPolicy, wall_clock, made_up_process(i));
            held += slot.state != nullptr ? 1 : 0;
        }
    }
};

void test_on_error_applies_to_a_table_without_a_free_slot(void**) {
    Scene scene;
    const Occupied occupied;
    for (const OnError on_error : {OnError::kOpen, OnError::kClosed}) {
        TestLimit busy = {&occupied.zone};
        busy.on_error = on_error;
        const Request alone({busy});
        assert_int_equal(alone.at_once(),
                         on_error == OnError::kOpen ? Progress::kAdmitted : Progress::kRefused);
        assert_int_equal(alone.decided_by(0), DecidedBy::kNobody);
        assert_int_equal(alone.reason(0), kNoSlot);
        const Request with_redis({busy, scene.in_first()});
        assert_int_equal(with_redis.in_the_end(&scene.loop),
                         on_error == OnError::kOpen ? Progress::kAdmitted : Progress::kRefused);
        assert_int_equal(with_redis.reason(0), kNoSlot);
        assert_int_equal(with_redis.reason(1), kNoReason);
        scene.loop.run_for(10);
        assert_int_equal(scene.first_server.refunds().size(), on_error == OnError::kOpen ? 0 : 1);
    }
}

void test_a_table_without_a_free_slot_decides_nothing_if_redis_rejects(void**) {
    Scene scene;
    const Occupied occupied;
    always_reject(&scene.first_server);
    const Request request({{&occupied.zone}, scene.in_first()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(request.decided_by(0), DecidedBy::kNobody);
}

void test_a_redis_that_times_out_is_left_out_in_time(void**) {
    Scene scene(80);
    scene.first_server.server.answers = false;
    scene.loop.run_for(5);
    const redis::Milliseconds start = scene.loop.now();
    const Request request({scene.in_first(), scene.in_second()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_in_range(scene.loop.now() - start, 75, 300);
    assert_int_equal(request.error(), Error::kTimedOut);
    assert_int_equal(request.decided_by(1), DecidedBy::kRedis);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_open_leaves_out_a_limit_whose_redis_fails),
        cmocka_unit_test(test_closed_refuses_and_charges_no_limit),
        cmocka_unit_test(test_local_decides_from_memory),
        cmocka_unit_test(test_no_request_waits_for_an_unavailable_redis),
        cmocka_unit_test(test_each_limit_of_a_failing_redis_has_its_own_on_error),
        cmocka_unit_test(test_each_limit_has_the_reason_why_redis_did_not_decide_it),
        cmocka_unit_test(test_redis_is_refunded_if_the_fallback_of_another_limit_rejects),
        cmocka_unit_test(test_another_redis_is_not_called_after_a_fallback_rejects),
        cmocka_unit_test(test_a_fallback_is_not_charged_if_another_redis_rejects),
        cmocka_unit_test(test_on_error_applies_to_a_table_without_a_free_slot),
        cmocka_unit_test(test_a_table_without_a_free_slot_decides_nothing_if_redis_rejects),
        cmocka_unit_test(test_a_redis_that_times_out_is_left_out_in_time),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
