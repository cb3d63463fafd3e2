// The deny cache: a client that Redis has just rejected is rejected without a call, unless rejected requests
// count.
#include "requests.h"

namespace rate_limit {
namespace {

void test_a_rejection_is_remembered_and_redis_is_not_called_again(void**) {
    Scene scene;
    always_reject(&scene.first_server);
    steady_clock += 10 * kSecond;
    const Request first({scene.cached()});
    assert_int_equal(first.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(first.decided_by(0), DecidedBy::kRedis);
    scene.first_server.calls.clear();
    steady_clock += 400'000;
    const Request again({scene.in_memory(), scene.cached(), scene.in_second()});
    assert_int_equal(again.at_once(), Progress::kRejected);
    assert_int_equal(again.decided_by(0), DecidedBy::kNobody);
    assert_int_equal(again.decided_by(1), DecidedBy::kCache);
    assert_int_equal(again.decision(1).retry_after, 30 * kSecond - 400'000);
    assert_int_equal(again.decision(1).reset_after, 60 * kSecond - 400'000);
    assert_int_equal(again.decided_at(1), ScriptServer::kTime + 400'000);
    scene.loop.run_for(10);
    assert_int_equal(scene.first_server.calls.size() + scene.second_server.calls.size(), 0);
    assert_int_equal(scene.zone->clients(), 0);
    steady_clock += 600'000;
    const Request after({scene.cached()});
    assert_int_equal(after.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(after.decided_by(0), DecidedBy::kRedis);
}

void test_a_denial_expires_when_the_client_may_succeed(void**) {
    Scene scene;
    scene.first_server.decide = [](const SeenLimit&) { return reject(300'000); };
    steady_clock += 10 * kSecond;
    const Request first({scene.cached()});
    assert_int_equal(first.in_the_end(&scene.loop), Progress::kRejected);
    steady_clock += 299'999;
    const Request cached({scene.cached()});
    assert_int_equal(cached.at_once(), Progress::kRejected);
    steady_clock += 1;
    scene.first_server.decide = [](const SeenLimit&) { return admit(); };
    const Request after({scene.cached()});
    assert_int_equal(after.in_the_end(&scene.loop), Progress::kAdmitted);
}

void test_a_denial_holds_only_for_the_same_client_policy_and_cost(void**) {
    Scene scene;
    always_reject(&scene.first_server);
    steady_clock += 10 * kSecond;
    const Request first({scene.cached(5)});
    assert_int_equal(first.in_the_end(&scene.loop), Progress::kRejected);
    scene.first_server.decide = [](const SeenLimit&) { return admit(); };
    const Policy other = policy_of(Algorithm::kSlidingWindow, "20r/m");
    TestLimit stranger = scene.cached(5);
    stranger.client = "bob";
    TestLimit uncached = scene.cached(5);
    uncached.denials = nullptr;
    for (const TestLimit& limit :
         {scene.cached(4), scene.cached(6), scene.cached(0), scene.cached(5, &other), stranger, uncached}) {
        const Request request({limit});
        assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    }
    const Request like({scene.cached(5)});
    assert_int_equal(like.at_once(), Progress::kRejected);
}

void test_no_denial_is_remembered_or_used_where_rejected_requests_count(void**) {
    Scene scene;
    always_reject(&scene.first_server);
    steady_clock += 10 * kSecond;
    Policy counting = kPolicy;
    counting.count_all = true;
    for (unsigned i = 1; i <= 3; i++) {
        const Request request({scene.cached(1, &counting)});
        assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
        assert_int_equal(scene.first_server.calls.size(), i);
    }
    const Request denied({scene.cached()});
    assert_int_equal(denied.in_the_end(&scene.loop), Progress::kRejected);
    const Request cached({scene.cached()});
    assert_int_equal(cached.at_once(), Progress::kRejected);
    const Request with_counting({scene.cached(), scene.cached(1, &counting)});
    assert_int_equal(with_counting.in_the_end(&scene.loop), Progress::kRejected);
    TestLimit in_memory = scene.in_memory();
    in_memory.policy = &counting;
    const Request with_memory({scene.cached(), in_memory});
    assert_int_equal(with_memory.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(used(scene.zone), 1);
}

void test_only_the_limit_that_rejects_is_remembered(void**) {
    Scene scene;
    steady_clock += 10 * kSecond;
    const Memory memory(65536);
    TestLimit other = scene.cached();
    other.name = "other";
    other.denials = Denials::create(memory.at(), memory.size(), kKey);
    scene.first_server.decide = [](const SeenLimit& limit) {
        return limit.key.find(":other:") != std::string::npos ? reject() : admit();
    };
    const Request first({scene.cached(), other});
    assert_int_equal(first.in_the_end(&scene.loop), Progress::kRejected);
    const Request alone({scene.cached()});
    assert_int_equal(alone.in_the_end(&scene.loop), Progress::kAdmitted);
    const Request both({scene.cached(), other});
    assert_int_equal(both.at_once(), Progress::kRejected);
    assert_int_equal(both.decided_by(0), DecidedBy::kNobody);
    assert_int_equal(both.decided_by(1), DecidedBy::kCache);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rejection_is_remembered_and_redis_is_not_called_again),
        cmocka_unit_test(test_a_denial_expires_when_the_client_may_succeed),
        cmocka_unit_test(test_a_denial_holds_only_for_the_same_client_policy_and_cost),
        cmocka_unit_test(test_no_denial_is_remembered_or_used_where_rejected_requests_count),
        cmocka_unit_test(test_only_the_limit_that_rejects_is_remembered),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
