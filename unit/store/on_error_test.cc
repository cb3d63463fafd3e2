// What becomes of a request when a Redis cannot be asked: on_error of each kind, alone and together.
#include "requests.h"

namespace rate_limit {
namespace {

void test_open_leaves_out_what_redis_cannot_say(void**) {
    Scene scene;
    Scene::fail(&scene.first_server);
    const Request request({scene.in_first(), scene.in_memory()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(request.error(), Error::kOutOfMemory);
    assert_int_equal(request.decided_by(0), DecidedBy::kNobody);
    assert_int_equal(request.decided_by(1), DecidedBy::kMemory);
    assert_int_equal(used(scene.zone), 1);
}

void test_closed_refuses_and_charges_nobody(void**) {
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
    // The last answer of Redis was that five are left.
    assert_int_equal(used(scene.zone), 5);
    Scene::fail(&scene.first_server);
    for (unsigned i = 0; i < 5; i++) {
        const Request last({scene.in_first(OnError::kLocal, &scene.zone)});
        assert_int_equal(last.in_the_end(&scene.loop), Progress::kAdmitted);
    }
    // After five failures Redis is no longer asked.
    const Request beyond({scene.in_first(OnError::kLocal, &scene.zone)});
    assert_int_equal(beyond.at_once(), Progress::kRejected);
    assert_int_equal(beyond.decided_by(0), DecidedBy::kFallback);
    assert_false(beyond.decision(0).allowed);
    assert_int_equal(used(scene.zone), 10);
}

void test_nobody_waits_for_a_redis_that_is_gone(void**) {
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

void test_each_limit_of_a_redis_that_fails_goes_its_own_way(void**) {
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

void test_each_limit_says_why_it_was_not_decided_as_it_should_be(void**) {
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

void test_redis_gets_back_what_a_fallback_rejects(void**) {
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

void test_another_redis_is_not_asked_for_what_a_fallback_rejects(void**) {
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

void test_a_fallback_is_not_charged_for_what_another_redis_rejects(void**) {
    Scene scene;
    Scene::fail(&scene.first_server);
    always_reject(&scene.second_server);
    const Request request({scene.in_first(OnError::kLocal, &scene.zone), scene.in_second()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(used(scene.zone), 0);
}

// A zone of which every slot is held by others.
struct Occupied {
    Zone zone = small_zone(kPolicy, 1);

    Occupied() {
        for (unsigned i = 0, held = 0; held < 16; i++) {
            const Slot slot = zone->acquire(client_number(i), kPolicy, wall_clock, made_up_process(i));
            held += slot.state != nullptr ? 1 : 0;
        }
    }
};

void test_memory_that_is_busy_goes_by_on_error_too(void**) {
    Scene scene;
    const Occupied occupied;
    for (const OnError on_error : {OnError::kOpen, OnError::kClosed}) {
        Place busy = {&occupied.zone};
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

void test_memory_that_is_busy_has_not_decided_what_redis_rejects(void**) {
    Scene scene;
    const Occupied occupied;
    always_reject(&scene.first_server);
    const Request request({{&occupied.zone}, scene.in_first()});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(request.decided_by(0), DecidedBy::kNobody);
}

void test_a_timed_out_redis_is_left_out_in_time(void**) {
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
        cmocka_unit_test(test_open_leaves_out_what_redis_cannot_say),
        cmocka_unit_test(test_closed_refuses_and_charges_nobody),
        cmocka_unit_test(test_local_decides_from_memory),
        cmocka_unit_test(test_nobody_waits_for_a_redis_that_is_gone),
        cmocka_unit_test(test_each_limit_of_a_redis_that_fails_goes_its_own_way),
        cmocka_unit_test(test_each_limit_says_why_it_was_not_decided_as_it_should_be),
        cmocka_unit_test(test_redis_gets_back_what_a_fallback_rejects),
        cmocka_unit_test(test_another_redis_is_not_asked_for_what_a_fallback_rejects),
        cmocka_unit_test(test_a_fallback_is_not_charged_for_what_another_redis_rejects),
        cmocka_unit_test(test_memory_that_is_busy_goes_by_on_error_too),
        cmocka_unit_test(test_memory_that_is_busy_has_not_decided_what_redis_rejects),
        cmocka_unit_test(test_a_timed_out_redis_is_left_out_in_time),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
