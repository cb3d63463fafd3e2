// The order in which limits are charged: a client that is over its own limit takes nothing from a limit that
// it shares with others, not even for a moment.
#include "redis/real_server.h"
#include "requests.h"

namespace rate_limit {
namespace {

const Policy kShared = policy_of(Algorithm::kSlidingWindow, "50r/h");
const Policy kOwn = policy_of(Algorithm::kSlidingWindow, "10r/h");

TestLimit with(TestLimit limit, const Policy& policy, const char* name, const char* client) {
    limit.policy = &policy;
    limit.name = name;
    limit.client = client;
    return limit;
}

void test_the_lowest_rate_is_asked_first(void**) {
    const struct {
        const char* low;
        const char* high;
    } cases[] = {{"10r/h", "50r/h"},
                 {"1000r/h", "50r/s"},
                 {"50r/s,100r/h", "101r/h"},
                 {"1000000000r/366d", "1000000000r/365d"}};
    for (const auto& each : cases) {
        const Policy low = policy_of(Algorithm::kSlidingWindow, each.low);
        const Policy high = policy_of(Algorithm::kSlidingWindow, each.high);
        for (const bool low_is_first : {false, true}) {
            Scene scene;
            const TestLimit in_low = with(scene.in_first(), low, "own", "alice");
            const TestLimit in_high = with(scene.in_second(), high, "shared", "all");
            always_reject(&scene.first_server);
            const Request request(low_is_first ? std::vector<TestLimit>{in_low, in_high}
                                               : std::vector<TestLimit>{in_high, in_low});
            assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
            scene.loop.run_for(10);
            assert_int_equal(scene.second_server.groups(), 0);
        }
    }
}

void test_memory_with_a_lower_rate_is_charged_before_redis_and_refunded(void**) {
    Scene scene;
    Zone own(kOwn);
    const TestLimit in_memory = with({&own}, kOwn, "own", "alice");
    const TestLimit in_redis = with(scene.in_first(), kShared, "shared", "all");
    const Request admitted({in_redis, in_memory});
    assert_int_equal(used(own), 1);
    assert_int_equal(admitted.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(used(own), 1);
    always_reject(&scene.first_server);
    const Request rejected({in_redis, in_memory});
    assert_int_equal(used(own), 2);
    assert_int_equal(rejected.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(used(own), 1);
    assert_true(rejected.decision(1).allowed);
    assert_int_equal(rejected.decided_by(1), DecidedBy::kMemory);
}

void test_memory_is_not_refunded_where_rejected_requests_count(void**) {
    Scene scene;
    Policy counting = kOwn;
    counting.count_all = true;
    Zone own(counting);
    always_reject(&scene.first_server);
    const Request rejected(
        {with(scene.in_first(), kShared, "shared", "all"), with({&own}, counting, "own", "alice")});
    assert_int_equal(rejected.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(used(own), 1);
}

void test_memory_is_refunded_if_redis_fails_and_on_error_is_closed(void**) {
    Scene scene;
    Zone own(kOwn);
    Scene::fail(&scene.first_server);
    const Request refused({with(scene.in_first(OnError::kClosed), kShared, "shared", "all"),
                           with({&own}, kOwn, "own", "alice")});
    assert_int_equal(refused.in_the_end(&scene.loop), Progress::kRefused);
    assert_int_equal(used(own), 0);
}

// The refund also reduces the unsent count.
void test_a_refund_reduces_the_unsent_count(void**) {
    Scene scene;
    Zone own(kOwn, layout_of(kOwn), kMegabyteZone, true);
    always_reject(&scene.first_server);
    const Request rejected(
        {with(scene.in_first(), kShared, "shared", "all"), with({&own}, kOwn, "own", "alice")});
    std::uint64_t from = 0;
    const Slot slot = own->next_unsent(&from, kProcess);
    assert_non_null(slot.state);
    assert_int_equal(own->unsent_of(slot).unsent(), 1);
    Table::keep(slot, kProcess);
    assert_int_equal(rejected.in_the_end(&scene.loop), Progress::kRejected);
    from = 0;
    assert_null(own->next_unsent(&from, kProcess).state);
    assert_int_equal(used(own), 0);
}

// An attacker that is over its own limit sends bursts; between them, honest clients send one request each.
template <class Own>
void attack(Scene* scene, const TestBatcher& shared, Own own, bool shared_is_first) {
    const auto request = [&](const char* client) {
        TestLimit in_shared =
            with({nullptr, shared.get(), OnError::kOpen, scene->denials}, kShared, "shared", "all");
        const TestLimit in_own = own(client);
        return std::make_unique<Request>(shared_is_first ? std::vector<TestLimit>{in_shared, in_own}
                                                         : std::vector<TestLimit>{in_own, in_shared});
    };
    const auto end = [&](const std::unique_ptr<Request>& one) {
        return one->at_once() == Progress::kWaiting ? one->in_the_end(&scene->loop) : one->at_once();
    };
    std::deque<std::string> names;
    std::deque<std::unique_ptr<Request>> burst;
    unsigned admitted = 0;
    unsigned honest = 0;
    for (unsigned i = 0; i < 30; i++) {
        for (unsigned j = 0; j < 100; j++) {
            burst.push_back(request("attacker"));
        }
        for (unsigned turn = 0; turn < i % 6; turn++) {
            scene->loop.turn(0);
        }
        names.push_back("honest" + std::to_string(i));
        honest += end(request(names.back().c_str())) == Progress::kAdmitted ? 1 : 0;
        for (const auto& one : burst) {
            admitted += end(one) == Progress::kAdmitted ? 1 : 0;
        }
        burst.clear();
    }
    assert_int_equal(honest, 30);
    assert_int_equal(admitted, 10);
}

void test_an_attacker_over_its_own_limit_takes_nothing_from_others(void**) {
    for (const bool shared_is_first : {true, false}) {
        for (const bool in_memory : {true, false}) {
            Scene scene;
            const redis::RealServer servers[2];
            const TestBatcher shared(&scene.loop, servers[0].path());
            const TestBatcher second(&scene.loop, servers[1].path());
            Zone zone(kOwn);
            const auto own = [&](const char* client) {
                return with(in_memory ? TestLimit{&zone} : TestLimit{nullptr, second.get()}, kOwn, "own",
                            client);
            };
            attack(&scene, shared, own, shared_is_first);
        }
    }
}

// If the shared limit has the lower rate, it is charged first and may be refunded. Rejections that the
// refunded charge has caused are then forgotten.
void test_a_rejection_is_forgotten_when_the_charge_that_caused_it_is_refunded(void**) {
    Scene scene;
    steady_clock += 10 * kSecond;
    unsigned charged = 0;
    scene.first_server.decide = [&](const SeenLimit&) { return charged++ == 0 ? admit() : reject(); };
    scene.second_server.server.answers = false;
    const std::size_t before = scene.second_server.server.count("EVALSHA");
    TestLimit shared = scene.cached();
    shared.client = "all";
    const Request attacker({shared, scene.in_second()});
    assert_true(scene.loop.run_until([&] { return scene.second_server.server.count("EVALSHA") > before; }));
    const Request rejected({shared});
    assert_int_equal(rejected.in_the_end(&scene.loop), Progress::kRejected);
    const Request remembered({shared});
    assert_int_equal(remembered.at_once(), Progress::kRejected);
    scene.second_server.server.say(redis::bulk(packed(5, 8) + reject()));
    assert_int_equal(attacker.in_the_end(&scene.loop), Progress::kRejected);
    scene.first_server.decide = [](const SeenLimit&) { return admit(); };
    const Request honest({shared});
    assert_int_equal(honest.in_the_end(&scene.loop), Progress::kAdmitted);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_lowest_rate_is_asked_first),
        cmocka_unit_test(test_memory_with_a_lower_rate_is_charged_before_redis_and_refunded),
        cmocka_unit_test(test_memory_is_not_refunded_where_rejected_requests_count),
        cmocka_unit_test(test_memory_is_refunded_if_redis_fails_and_on_error_is_closed),
        cmocka_unit_test(test_a_refund_reduces_the_unsent_count),
        cmocka_unit_test(test_an_attacker_over_its_own_limit_takes_nothing_from_others),
        cmocka_unit_test(test_a_rejection_is_forgotten_when_the_charge_that_caused_it_is_refunded),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
