// After the clock was set back, states that had ended stay ended, and other states stay.
#include <random>
#include <string>
#include <vector>

#include "unsent.h"

namespace rate_limit {
namespace {

Micros steady;

Process clocked(std::uint32_t number = 0) {
    Process process = made_up_process(number);
    process.clock = [] { return steady; };
    process.clock_is_shared = true;
    return process;
}

// A zone with a clock that the test sets, and another clock that is never set back.
class Scene {
  public:
    explicit Scene(const Policy& policy) : Scene(policy, layout_of(policy)) {}
    Scene(const Policy& policy, const StateLayout& layout)
        : policy_(policy), zone_(policy, layout, size_with_unsent(layout, 8), true) {}

    void pass(Micros time) {
        steady += time;
        now_ += time;
    }
    void set_back(Micros time) { now_ -= time; }

    Decision ask(std::string_view name, std::uint64_t cost = 1) const {
        TableLimit limit = limit_of(zone_, name, cost);
        limit.policy = &policy_;
        check(&limit, 1, now_, clocked());
        return limit.decision;
    }

    unsigned admitted(std::string_view name, unsigned requests) const {
        unsigned count = 0;
        for (unsigned i = 0; i < requests; i++) {
            count += ask(name).allowed ? 1 : 0;
        }
        return count;
    }

    const Zone& zone() const { return zone_; }
    Micros now() const { return now_; }

  private:
    Policy policy_;
    Zone zone_;
    Micros now_ = kMidnight + 10 * kMinute;
};

struct Variant {
    std::string name;
    Policy policy;
    StateLayout layout;
};

// All limits of five requests in an hour.
std::vector<Variant> variants() {
    std::vector<Variant> all;
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const std::string name = algorithm_name(algorithm);
        const Policy one = policy_of(algorithm, "5r/h");
        all.push_back({name, one, layout_of(one)});
        const Policy several = policy_of(algorithm, "5r/h,100r/2h");
        all.push_back({name + ", several rates", several, layout_of(several)});
        all.push_back({name + ", rates that differ", one, layout_of(one, 2, 5)});
        Policy interval = one;
        interval.min_interval = 1;
        all.push_back({name + ", min_interval", interval, layout_of(interval)});
        Policy all_count = one;
        all_count.count_all = true;
        all.push_back({name + ", count=all", all_count, layout_of(all_count)});
    }
    Policy first = policy_of(Algorithm::kFixedWindow, "5r/h");
    first.align_first = true;
    all.push_back({"fixed_window, align=first", first, layout_of(first)});
    return all;
}

// Uses up the quota, waits, and sets the clock back; returns how many of seven requests are admitted then.
unsigned left_after(const Variant& variant, Micros wait, bool asked, Micros back) {
    Scene scene(variant.policy, variant.layout);
    for (unsigned i = 0; i < 5; i++) {
        scene.pass(1);
        assert_true(scene.ask("client").allowed);
    }
    scene.pass(wait);
    if (asked) {
        scene.ask("another");
    }
    scene.set_back(back);
    unsigned admitted = 0;
    for (unsigned i = 0; i < 7; i++) {
        scene.pass(1);
        admitted += scene.ask("client").allowed ? 1 : 0;
    }
    if (admitted != 0) {
        assert_int_equal(scene.zone()->lost(), 0);
    }
    return admitted;
}

void test_what_had_ended_stays_ended(void**) {
    bool all = true;
    for (const Variant& variant : variants()) {
        for (const bool asked : {true, false}) {
            for (const Micros back :
                 {7 * kHour, 6 * kHour + 3 * kSecond, 6 * kHour - 5 * kMinute, 3 * kYear}) {
                const unsigned left = left_after(variant, 6 * kHour, asked, back);
                if (left != 5) {
                    print_error("%s, %ld s back: %u of 5 left\n", variant.name.c_str(),
                                static_cast<long>(back / kSecond), left);
                    all = false;
                }
            }
        }
    }
    assert_true(all);
}

void test_what_had_not_ended_stays(void**) {
    for (const Variant& variant : variants()) {
        for (const bool asked : {true, false}) {
            for (const Micros back : {2 * kSecond, 5 * kMinute, 7 * kHour, 3 * kYear}) {
                assert_int_equal(left_after(variant, 5 * kMinute, asked, back), 0);
            }
        }
    }
}

// Clients that do and do not ask after each of many steps are answered as one alone whose state is forgotten
// if it had ended.
void test_many_steps_back_leave_each_client_what_it_had(void**) {
    for (const Variant& variant : variants()) {
        if (variant.layout.varied) {
            continue;  // ends by whole seconds
        }
        std::mt19937 random(17);
        steady = 1000 * kSecond;
        Scene scene(variant.policy, variant.layout);
        std::vector<Client> alone(20, Client(variant.policy, variant.layout));
        for (unsigned i = 0; i < 3000; i++) {
            scene.pass(static_cast<Micros>(random() % (10 * kMinute)));
            if (random() % 20 == 0) {
                const Micros before = scene.now();
                scene.set_back(2 * kSecond + static_cast<Micros>(random() % (3 * kHour)));
                for (Client& client : alone) {
                    if (client.weight(before) == 0 && client.weight(scene.now()) != 0) {
                        client = Client(variant.policy, variant.layout);
                    }
                }
            }
            const unsigned number = random() % 20;
            const Decision expected = alone[number].request(scene.now());
            const Decision got = scene.ask(name_of(number));
            assert_int_equal(got.allowed, expected.allowed);
            assert_int_equal(got.remaining, expected.remaining);
            assert_int_equal(got.retry_after, expected.retry_after);
        }
        assert_int_equal(scene.zone()->evictions(), 0);
    }
}

void test_a_request_of_several_limits_follows_in_each(void**) {
    const Policy hour = policy_of(Algorithm::kSlidingWindow, "5r/h");
    const Policy minute = policy_of(Algorithm::kTokenBucket, "5r/m");
    const Zone zones[] = {small_zone(hour, 2), small_zone(minute, 2)};
    const auto admitted = [&](Micros now) {
        unsigned count = 0;
        for (unsigned i = 0; i < 7; i++) {
            TableLimit limits[] = {zones[0].limit(1), zones[1].limit(1)};
            count += check(limits, 2, now, clocked()) == Verdict::kAdmitted ? 1 : 0;
        }
        return count;
    };
    assert_int_equal(admitted(kNow), 5);
    steady += 6 * kHour;
    assert_int_equal(admitted(kNow - kHour), 5);
}

// Unsent counts are sent even if the state was cleared.
void test_what_is_owed_stays_owed(void**) {
    Scene scene(policy_of(Algorithm::kGcra, "5r/h"));
    scene.admitted("client", 5);
    scene.pass(6 * kHour);
    scene.set_back(7 * kHour);
    scene.ask("another");
    const UnsentCopy unsent = unsent_of(scene.zone(), "client");
    assert_true(unsent.marked);
    assert_int_equal(unsent.unsent, 5);
}

void test_a_process_that_was_stopped_opens_nothing(void**) {
    for (const Variant& variant : variants()) {
        Scene scene(variant.policy, variant.layout);
        scene.admitted("another", 1);
        for (unsigned i = 0; i < 5; i++) {
            scene.pass(kSecond);
            scene.ask("client");
        }
        // The process has read the clock three seconds ago.
        TableLimit late = limit_of(scene.zone(), "another");
        check(&late, 1, scene.now() - 3 * kSecond, clocked(1));
        scene.pass(kSecond);
        assert_int_equal(scene.admitted("client", 3), 0);
    }
}

void test_a_table_that_takes_over_knows_the_time(void**) {
    const Policy policy = policy_of(Algorithm::kSlidingWindow, "5r/h");
    const Zone from = small_zone(policy, 4);
    const Zone to(policy, layout_of(policy, 2, 0), kMegabyteZone);
    TableLimit limit = from.limit(1, 5);
    assert_int_equal(check(&limit, 1, kNow, clocked()), Verdict::kAdmitted);
    steady += 6 * kHour;
    to->import(from.table(), policy.rates, to.policy(), kNow - kHour, clocked());
    limit = to.limit(1, 5);
    check(&limit, 1, kNow - kHour, clocked());
    assert_true(limit.decision.allowed);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    steady = 1000 * kSecond;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_what_had_ended_stays_ended),
        cmocka_unit_test(test_what_had_not_ended_stays),
        cmocka_unit_test(test_many_steps_back_leave_each_client_what_it_had),
        cmocka_unit_test(test_a_request_of_several_limits_follows_in_each),
        cmocka_unit_test(test_what_is_owed_stays_owed),
        cmocka_unit_test(test_a_process_that_was_stopped_opens_nothing),
        cmocka_unit_test(test_a_table_that_takes_over_knows_the_time),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
