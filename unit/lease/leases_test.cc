// The leases of a zone's clients: who gets one, when a portion is asked for, what requests find, and what a
// process that dies leaves behind.
#include "lease/leases.h"

#include <vector>

#include "memory/processes.h"
#include "memory/shared_zone.h"
#include "memory/stepper.h"

namespace rate_limit {
namespace {

constexpr LeaseSize kTenth = {10, true};
constexpr Micros kRedisNow = kMidnight;

Micros clock_now = 0;

// Leases in memory of their own, of clients at a steady pace.
struct Scene {
    explicit Scene(const Policy& policy, std::size_t sets = 1)
        : policy(policy), memory(Leases::least_size() * sets) {
        clock_now = kDay;
        leases = Leases::create(memory.at(), memory.size(), kKey);
        assert_non_null(leases);
    }

    LeaseClient client(const char* name = "alice") const { return {name, leases->hash(name), &policy}; }

    LeaseTake take(std::uint64_t cost = 1, const char* name = "alice") const {
        LeaseTake take;
        leases->take(client(name), size, cost, clock_now, process, &take);
        return take;
    }

    // Requests every `gap` microseconds until a portion is asked for.
    LeaseAsk ask(Micros gap = 1000) const {
        for (unsigned i = 0; i < 1000; i++) {
            const LeaseAsk ask = take().ask;
            if (ask.amount != 0) {
                return ask;
            }
            clock_now += gap;
        }
        return {};
    }

    LeaseRest grant(const LeaseAsk& ask, std::uint64_t remaining = 500, Micros reset_after = 30 * kSecond,
                    Micros time = kRedisNow) const {
        Decision decision = {};
        decision.allowed = true;
        decision.remaining = remaining;
        decision.reset_after = reset_after;
        return leases->grant(client(), ask, decision, time, clock_now, process);
    }

    LeaseAsk refuse(const LeaseAsk& ask, std::uint64_t remaining, bool last = false) const {
        Decision decision = {};
        decision.remaining = remaining;
        decision.reset_after = 10 * kSecond;
        decision.retry_after = 3 * kSecond;
        return leases->refuse(client(), ask, decision, kRedisNow, last, process);
    }

    std::uint64_t units() const { return leases->units(client(), process); }

    Policy policy;
    LeaseSize size = kTenth;
    Memory memory;
    Leases* leases;
    Process process = {1, process_is_alive, yield_to_others, [] { return clock_now; }};
};

Policy fixed() { return policy_of(Algorithm::kFixedWindow, "10000r/m"); }
Policy bucket() { return policy_of(Algorithm::kTokenBucket, "1000r/s"); }

void test_leases_need_their_least_size(void**) {
    const Memory memory(Leases::least_size());
    assert_null(Leases::create(memory.at(), Leases::least_size() - 1, kKey));
    assert_non_null(Leases::create(memory.at(), Leases::least_size(), kKey));
}

void test_a_cold_client_leases_nothing(void**) {
    const Scene scene(fixed());
    for (unsigned i = 0; i < 1000; i++) {
        const LeaseTake take = scene.take();
        assert_int_equal(take.use, LeaseUse::kNone);
        assert_int_equal(take.ask.amount, 0);
        clock_now += 20'000;
    }
}

void test_a_client_that_makes_three_requests_within_16_ms_leases(void**) {
    const Scene scene(fixed());
    clock_now &= ~Micros{0x3fff};
    assert_int_equal(scene.take().ask.amount, 0);
    assert_int_equal(scene.take().ask.amount, 0);
    const LeaseAsk ask = scene.take().ask;
    assert_in_range(ask.amount, 2, 4);
    assert_int_equal(scene.take().ask.amount, 0);  // one ask at a time
    scene.grant(ask);
    assert_int_equal(scene.units(), ask.amount);
    assert_int_equal(scene.take().use, LeaseUse::kTaken);
    assert_int_equal(scene.units(), ask.amount - 1);
}

void test_the_portion_grows_with_the_pace_up_to_the_size(void**) {
    for (const Micros gap : {2000, 200, 20, 2}) {
        const Scene scene(fixed());
        std::uint64_t largest = 0;
        for (Micros end = clock_now + 300'000; clock_now < end; clock_now += gap) {
            const LeaseAsk ask = scene.take().ask;
            largest = clock_now > end - 100'000 ? std::max(largest, scene.units() + ask.amount) : 0;
            if (ask.amount != 0) {
                scene.grant(ask);
            }
        }
        const auto wanted = std::min<std::uint64_t>(static_cast<std::uint64_t>(20'000 / gap), 1000);
        assert_in_range(largest, wanted * 9 / 10, wanted * 11 / 10 + 1);
    }
}

void test_a_portion_is_asked_for_before_the_last_one_is_used(void**) {
    const Scene scene(fixed());
    scene.grant(scene.ask(100));
    unsigned without = 0;
    LeaseAsk asked;
    Micros asked_at = 0;
    for (unsigned i = 0; i < 5000; i++, clock_now += 100) {
        const LeaseTake take = scene.take();
        without += i > 200 && take.use != LeaseUse::kTaken ? 1 : 0;
        if (take.ask.amount != 0) {
            asked = take.ask;
            asked_at = clock_now;
        }
        if (asked.amount != 0 && clock_now >= asked_at + 2000) {
            scene.grant(asked);
            asked = {};
        }
    }
    assert_int_equal(without, 0);
}

void test_units_of_a_window_end_with_it_and_go_back(void**) {
    const Scene scene(fixed());
    scene.grant(scene.ask(), 500, 50'000);
    const std::uint64_t units = scene.units();
    assert_true(units > 2);
    clock_now += 49'999;
    assert_int_equal(scene.units(), units);
    clock_now += 1;
    assert_int_equal(scene.units(), 0);
    IdleLease idle;
    std::uint64_t from = 0;
    assert_true(scene.leases->next_idle(&from, 100, false, scene.process, &idle));
    assert_int_equal(idle.rest.amount, units);
    assert_int_equal(idle.rest.charged_at, kRedisNow);
    assert_int_equal(std::string(idle.name, idle.name_size) == "alice", 1);
    assert_false(scene.leases->next_idle(&from, 100, false, scene.process, &idle));
}

void test_units_of_the_next_window_send_back_those_of_the_last(void**) {
    const Scene scene(fixed());
    scene.grant(scene.ask(), 500, 10'000);
    const std::uint64_t units = scene.units();
    clock_now += 10'001;
    const LeaseAsk next = scene.ask();
    const LeaseRest rest = scene.grant(next, 500, kMinute, kRedisNow + 10'002);
    assert_int_equal(rest.amount, units);
    assert_int_equal(rest.charged_at, kRedisNow);
    assert_int_equal(scene.units(), next.amount);
}

void test_idle_units_of_a_window_go_back(void**) {
    const Scene scene(fixed());
    scene.grant(scene.ask());
    IdleLease idle;
    std::uint64_t from = 0;
    clock_now += kLeaseIdle - 1;
    assert_false(scene.leases->next_idle(&from, 100, false, scene.process, &idle));
    clock_now += 1;
    assert_true(scene.leases->next_idle(&from, 100, false, scene.process, &idle));
    assert_int_equal(scene.units(), 0);
}

void test_units_of_a_bucket_drain_and_do_not_go_back(void**) {
    const Scene scene(bucket());
    LeaseAsk ask = scene.ask(500);
    scene.grant(ask, 500, 50'000);  // of the 50 units in Redis, these are the last
    const std::uint64_t units = scene.units();
    assert_in_range(units, 2, 20);
    const Micros granted_at = clock_now;
    clock_now = granted_at + 49'999 - static_cast<Micros>(units) * 1000;
    assert_int_equal(scene.units(), units);
    clock_now += 1;
    assert_int_equal(scene.units(), units - 1);
    clock_now = granted_at + 49'999 - 1000;
    assert_int_equal(scene.units(), 1);
    clock_now += 1;
    assert_int_equal(scene.units(), 0);
    IdleLease idle;
    std::uint64_t from = 0;
    clock_now += kLeaseIdle;
    assert_false(scene.leases->next_idle(&from, 100, true, scene.process, &idle));
}

// Asks for another portion while the client has units, because its pace rises.
LeaseAsk ask_for_more(const Scene& scene) {
    for (unsigned i = 0; i < 1000; i++, clock_now += 50) {
        const LeaseAsk ask = scene.take(scene.units() + 1).ask;
        if (ask.amount != 0) {
            return ask;
        }
    }
    return {};
}

void test_a_third_portion_of_a_bucket_ends_the_second_with_the_first(void**) {
    const Scene scene(policy_of(Algorithm::kTokenBucket, "1000000r/s"));
    const Micros start = clock_now;
    scene.grant(scene.ask(500), 500, start + 90'000 - clock_now);
    const std::uint64_t first = scene.units();
    scene.grant(ask_for_more(scene), 500, start + 95'000 - clock_now);
    assert_true(scene.units() > first);
    const LeaseAsk last = ask_for_more(scene);
    scene.grant(last, 500, start + 99'000 - clock_now);
    assert_true(scene.units() > last.amount);
    assert_true(clock_now < start + 80'000);
    clock_now = start + 91'000;
    assert_int_equal(scene.units(), 7999);  // of the last portion only
}

void test_requests_that_cost_more_than_is_left_go_to_redis(void**) {
    const Scene scene(fixed());
    scene.grant(scene.ask());
    const std::uint64_t units = scene.units();
    assert_int_equal(scene.take(units + 1).use, LeaseUse::kNone);
    assert_int_equal(scene.take(units).use, LeaseUse::kTaken);
}

void test_what_redis_has_left_is_asked_for_once(void**) {
    const Scene scene(fixed());
    LeaseAsk ask = scene.ask(100);
    assert_true(ask.amount > 2);
    const std::uint32_t id = ask.id;
    ask = scene.refuse(ask, 2);
    assert_int_equal(ask.amount, 2);
    assert_int_equal(ask.id, id);
    assert_int_equal(scene.refuse(ask, 1, true).amount, 0);
    const Scene other(fixed());
    ask = other.refuse(other.ask(100), 0);
    assert_int_equal(ask.amount, 1);  // to learn when a request fits
}

void test_while_redis_has_nothing_requests_are_rejected_and_few_asks_are_sent(void**) {
    const Scene scene(fixed());
    scene.refuse(scene.refuse(scene.ask(100), 0), 0, true);
    unsigned asks = 0;
    LeaseAsk asked;
    for (const Micros end = clock_now + kSecond; clock_now < end; clock_now += 10) {
        const LeaseTake take = scene.take();
        assert_int_equal(take.use, LeaseUse::kDry);
        assert_false(take.decision.allowed);
        assert_in_range(take.decision.retry_after, kSecond, 3 * kSecond);
        if (asked.amount != 0 && clock_now % 1000 == 0) {
            assert_int_equal(scene.refuse(asked, 0, true).amount, 0);
            asked = {};
        }
        asked = take.ask.amount != 0 ? take.ask : asked;
        asks += take.ask.amount != 0 ? 1 : 0;
    }
    assert_in_range(asks, 40, 50);
    // A request of another cost is not known to be rejected.
    assert_int_equal(scene.take(2).use, LeaseUse::kNone);
}

void test_requests_go_to_redis_after_a_failed_ask(void**) {
    const Scene scene(fixed());
    LeaseAsk ask = scene.ask(100);
    scene.refuse(ask, 0, true);
    clock_now += kLeaseHorizon;
    ask = scene.take().ask;
    assert_true(ask.amount != 0);
    scene.leases->fail(scene.client(), ask, scene.process);
    assert_int_equal(scene.take().use, LeaseUse::kNone);
    assert_int_equal(scene.take().ask.amount, 0);
}

void test_an_answer_that_is_late_or_unknown_goes_back(void**) {
    const Scene scene(fixed());
    LeaseAsk ask = scene.ask();
    clock_now += Leases::kAskFor;
    assert_int_equal(scene.grant(ask).amount, ask.amount);
    const Scene reset(fixed());
    ask = reset.ask();
    reset.leases->forget(reset.client().hash, reset.process);
    assert_int_equal(reset.grant(ask).amount, ask.amount);
    assert_int_equal(reset.units(), 0);
    const Scene drained(bucket());
    ask = drained.ask(500);
    clock_now += Leases::kAskFor;
    assert_int_equal(drained.grant(ask).amount, 0);
}

void test_a_refund_goes_back_to_its_portion_only(void**) {
    const Scene scene(fixed());
    scene.grant(scene.ask());
    const std::uint64_t units = scene.units();
    const LeaseTake take = scene.take();
    assert_int_equal(scene.units(), units - 1);
    const std::uint64_t client = scene.client().hash;
    assert_false(scene.leases->put_back(client, take.portion + 1, 1, scene.process));
    assert_true(scene.leases->put_back(client, take.portion, 1, scene.process));
    assert_int_equal(scene.units(), units);
    clock_now += kMinute;
    assert_false(scene.leases->put_back(client, take.portion, 1, scene.process));
}

void test_another_policy_drops_the_lease(void**) {
    Scene scene(fixed());
    scene.grant(scene.ask());
    const std::uint64_t units = scene.units();
    scene.policy = policy_of(Algorithm::kFixedWindow, "20000r/m");
    const LeaseTake take = scene.take();
    assert_int_equal(take.use, LeaseUse::kNone);
    assert_int_equal(take.rest.amount, units);
    assert_int_equal(take.ask.amount, 0);
}

void test_a_full_set_leaves_a_client_without_a_lease(void**) {
    const Scene scene(fixed());
    unsigned with = 0;
    for (unsigned i = 0; i < 20; i++) {
        const std::string name = "client" + std::to_string(i);
        LeaseAsk ask;
        for (unsigned j = 0; j < 5; j++) {
            const LeaseAsk own = scene.take(1, name.c_str()).ask;
            ask = own.amount != 0 ? own : ask;
        }
        with += ask.amount != 0 ? 1 : 0;
    }
    assert_int_equal(with, 8);
    // Entries of clients that are gone are free again.
    IdleLease idle;
    std::uint64_t from = 0;
    clock_now += 2 * kSecond;
    assert_false(scene.leases->next_idle(&from, 100, false, scene.process, &idle));
    LeaseAsk ask;
    for (unsigned j = 0; j < 5; j++) {
        const LeaseAsk own = scene.take(1, "client19").ask;
        ask = own.amount != 0 ? own : ask;
    }
    assert_true(ask.amount != 0);
}

void test_the_lock_of_a_living_process_is_waited_for_in_vain(void**) {
    const Scene scene(fixed());
    scene.grant(scene.ask());
    auto* words = scene.memory.as<std::uint64_t>();
    // The lock follows the client in its entry.
    std::size_t at = 0;
    while (words[at] != scene.client().hash) {
        at++;
    }
    reinterpret_cast<std::uint32_t*>(&words[at + 1])[0] = kMadeUp;
    assert_int_equal(scene.take().use, LeaseUse::kNone);
    reinterpret_cast<std::uint32_t*>(&words[at + 1])[0] = scene.process.self;
    assert_int_equal(scene.units(), 0);  // left by a dead process with this id
}

#if defined(__x86_64__)

std::uint32_t the_dead = 0;

// What survives is never more than Redis has granted, and the client can lease again.
void assert_continues(const Memory& memory, const Scene& scene, std::uint64_t granted) {
    auto* leases = memory.as<Leases>();
    Process survivor = scene.process;
    survivor.alive = [](std::uint32_t process) { return process != the_dead; };
    std::uint64_t used = 0;
    for (unsigned i = 0; i < granted + 5; i++) {
        LeaseTake take;
        leases->take(scene.client(), scene.size, 1, clock_now, survivor, &take);
        used += take.use == LeaseUse::kTaken ? 1 : 0;
    }
    assert_true(used <= granted);
    const Micros before = clock_now;
    LeaseAsk ask;
    for (unsigned i = 0; i < 3000 && ask.amount == 0; i++, clock_now += 1000) {
        LeaseTake take;
        leases->take(scene.client(), scene.size, 1, clock_now, survivor, &take);
        ask = take.ask;
    }
    assert_true(ask.amount != 0);
    clock_now = before;
}

void test_a_process_may_die_after_any_instruction(void**) {
    const Memory progress(sizeof(Progress));
    const Scene scene(fixed());
    LeaseAsk ask = scene.ask();
    const auto act = [&](const std::function<void(const Process&)>& what, std::uint64_t granted) {
        Memory copy(scene.memory.size());
        const Stepper dying(
            [&](const Process& real) {
                Process process = scene.process;
                process.self = real.self;
                what(process);
                return 0;
            },
            progress.as<Progress>());
        the_dead = dying.id();
        unsigned steps = 0;
        for (; !dying.done(); steps++) {
            assert_true(steps < 1'000'000);
            dying.step();
            std::memcpy(copy.at(), scene.memory.at(), copy.size());
            assert_continues(copy, scene, granted);
        }
        assert_true(steps > 50);
    };
    Decision decision = {};
    decision.allowed = true;
    decision.reset_after = 30 * kSecond;
    act(
        [&](const Process& process) {
            scene.leases->grant(scene.client(), ask, decision, kRedisNow, clock_now, process);
        },
        ask.amount);
    act(
        [&](const Process& process) {
            LeaseTake take;
            scene.leases->take(scene.client(), scene.size, 1, clock_now, process, &take);
        },
        ask.amount);
    act(
        [&](const Process& process) {
            IdleLease idle;
            std::uint64_t from = 0;
            scene.leases->next_idle(&from, 10, true, process, &idle);
        },
        ask.amount);
    act([&](const Process& process) { scene.leases->forget(scene.client().hash, process); }, 0);
}

#endif

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_leases_need_their_least_size),
        cmocka_unit_test(test_a_cold_client_leases_nothing),
        cmocka_unit_test(test_a_client_that_makes_three_requests_within_16_ms_leases),
        cmocka_unit_test(test_the_portion_grows_with_the_pace_up_to_the_size),
        cmocka_unit_test(test_a_portion_is_asked_for_before_the_last_one_is_used),
        cmocka_unit_test(test_units_of_a_window_end_with_it_and_go_back),
        cmocka_unit_test(test_units_of_the_next_window_send_back_those_of_the_last),
        cmocka_unit_test(test_idle_units_of_a_window_go_back),
        cmocka_unit_test(test_units_of_a_bucket_drain_and_do_not_go_back),
        cmocka_unit_test(test_a_third_portion_of_a_bucket_ends_the_second_with_the_first),
        cmocka_unit_test(test_requests_that_cost_more_than_is_left_go_to_redis),
        cmocka_unit_test(test_what_redis_has_left_is_asked_for_once),
        cmocka_unit_test(test_while_redis_has_nothing_requests_are_rejected_and_few_asks_are_sent),
        cmocka_unit_test(test_requests_go_to_redis_after_a_failed_ask),
        cmocka_unit_test(test_an_answer_that_is_late_or_unknown_goes_back),
        cmocka_unit_test(test_a_refund_goes_back_to_its_portion_only),
        cmocka_unit_test(test_another_policy_drops_the_lease),
        cmocka_unit_test(test_a_full_set_leaves_a_client_without_a_lease),
        cmocka_unit_test(test_the_lock_of_a_living_process_is_waited_for_in_vain),
#if defined(__x86_64__)
        cmocka_unit_test(test_a_process_may_die_after_any_instruction),
#endif
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
