// decide(): all paths give the same decisions, and without free slots or memory nothing is decided.
#include "store/decide.h"

#include "requests.h"

namespace rate_limit {
namespace {

// Locks all slots of a table with one set, each for another process.
void fill(const Zone& zone) {
    for (std::uint32_t i = 0; i < zone->slots(); i++) {
        assert_non_null(zone->acquire(client_number(i), zone.policy(), wall_clock, made_up_process(i)).state);
    }
}

TestLimit in(const Zone& zone, const char* name, OnError on_error = OnError::kOpen) {
    TestLimit limit = {&zone};
    limit.name = name;
    limit.on_error = on_error;
    return limit;
}

void test_one_limit_and_several_get_the_same_decisions(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = policy_of(algorithm, "3r/m");
        const Zone alone(policy);
        const Zone first(policy);
        const Zone second(policy);
        for (int i = 0; i < 5; i++) {
            const Request one({in(alone, "alone")});
            const Request two({in(first, "first"), in(second, "second")});
            assert_int_equal(one.at_once(), two.at_once());
            assert_int_equal(one.decided_at(), wall_clock);
            for (const std::size_t index : {0, 1}) {
                assert_int_equal(two.decided_by(index), DecidedBy::kMemory);
                assert_int_equal(two.reason(index), kNoReason);
                assert_int_equal(two.decision(index).allowed, one.decision(0).allowed);
                assert_int_equal(two.decision(index).remaining, one.decision(0).remaining);
                assert_int_equal(two.decision(index).retry_after, one.decision(0).retry_after);
                assert_int_equal(two.decision(index).reset_after, one.decision(0).reset_after);
            }
        }
        assert_int_equal(used(alone), used(first));
    }
}

void test_on_error_applies_without_a_free_slot_and_no_limit_is_charged(void**) {
    for (const OnError on_error : {OnError::kOpen, OnError::kClosed}) {
        const Zone full = small_zone(kPolicy, 1);
        const Zone free(kPolicy);
        fill(full);
        const Progress expected = on_error == OnError::kOpen ? Progress::kAdmitted : Progress::kRefused;
        const Request alone({in(full, "full", on_error)});
        const Request beside({in(free, "free"), in(full, "full", on_error)});
        for (const Request* request : {&alone, &beside}) {
            assert_int_equal(request->at_once(), expected);
            assert_int_equal(request->decided_by(0), DecidedBy::kNobody);
            assert_int_equal(request->reason(0), kNoSlot);
        }
        assert_int_equal(used(free), 0);
    }
}

void test_nothing_is_decided_without_memory_for_a_check(void**) {
    Scene scene;
    StoreZone zone = {};
    zone.label = "api";
    zone.layout = layout_of(kPolicy);
    zone.batcher = scene.first.get();
    Limit limit = {&zone,   &kPolicy, "alice", 1,    nullptr, false, false, DecidedBy::kCache,
                   kNoSlot, {},       0,       true, 0};
    const RequestOutcome outcome = decide(
        &limit, 1, kProcess, [] { return wall_clock; },
        {[](void*, std::size_t) -> void* { return nullptr; }, nullptr}, nullptr);
    assert_int_equal(outcome.progress, Progress::kNoMemory);
    assert_int_equal(limit.decided_by, DecidedBy::kNobody);
    scene.loop.run_for(10);
    assert_int_equal(scene.first_server.calls.size(), 0);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_one_limit_and_several_get_the_same_decisions),
        cmocka_unit_test(test_on_error_applies_without_a_free_slot_and_no_limit_is_charged),
        cmocka_unit_test(test_nothing_is_decided_without_memory_for_a_check),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
