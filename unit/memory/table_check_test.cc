// A request with one or several limits is charged to all of them or to none.
#include <vector>

#include "shared_zone.h"

namespace rate_limit {
namespace {

constexpr std::uint64_t kClient = 42;

unsigned waits = 0;

// Counts how often a check waited for another process.
Process counting_process() {
    Process process = this_process();
    waits = 0;
    process.yield = [] {
        waits++;
        sched_yield();
    };
    return process;
}

void test_one_limit_admits_its_quota_and_rejects_the_rest(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Zone zone(policy_of(algorithm, "10r/m"));
        for (std::uint32_t i = 0; i < 15; i++) {
            TableLimit limit = zone.limit(kClient);
            const Verdict verdict = check(&limit, 1, kNow, this_process());
            assert_int_equal(verdict, i < 10 ? Verdict::kAdmitted : Verdict::kRejected);
            assert_int_equal(limit.decision.allowed, i < 10);
            assert_int_equal(limit.decision.limit, 10);
            assert_int_equal(limit.decision.remaining, i < 10 ? 9 - i : 0);
        }
        assert_int_equal(zone->clients(), 1);
    }
}

// Checks a client by name, in one step and in several, in tables with and without unsent counts.
void test_one_limit_is_checked_by_name_as_by_hash(void**) {
    const std::string names[] = {"192.0.2.1", "sha256:of what is a digest", std::string(200, 'x'), "}{"};
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = policy_of(algorithm, "10r/m");
        for (const bool unsent_counts : {false, true}) {
            const StateLayout layout = layout_of(policy);
            const std::size_t size = size_with_unsent(layout, 4);
            const Zone steps(policy, layout, size, unsent_counts);
            const Zone named(policy, layout, size, unsent_counts);
            for (unsigned i = 0; i < 60; i++) {
                const std::string& name = names[i % 4];
                const std::uint64_t cost = i % 7 == 0 ? 0 : 1 + i % 3;
                NameRoom room;
                TableLimit limit = memory_limit(&steps.table(), policy, name, cost, &room);
                const Verdict verdict = check(&limit, 1, kNow + i, this_process());
                Decision decision = {};
                assert_int_equal(is_single(policy, layout)
                                     ? check_single(&named.table(), policy, name, cost, kNow + i,
                                                    this_process(), &decision)
                                     : check_by_name(&named.table(), policy, name, cost, kNow + i,
                                                     this_process(), &decision),
                                 verdict);
                assert_int_equal(decision.remaining, limit.decision.remaining);
                assert_int_equal(decision.reset_after, limit.decision.reset_after);
                assert_int_equal(decision.retry_after, limit.decision.retry_after);
            }
            assert_int_equal(named->clients(), steps->clients());
            std::uint64_t from = 0;
            std::uint64_t other = 0;
            for (; unsent_counts;) {
                const Slot a = steps->next_unsent(&from, this_process());
                const Slot b = named->next_unsent(&other, this_process());
                assert_int_equal(a.state == nullptr, b.state == nullptr);
                if (a.state == nullptr) {
                    break;
                }
                assert_int_equal(steps->unsent_of(a).unsent(), named->unsent_of(b).unsent());
                assert_true(steps->unsent_of(a).name() == named->unsent_of(b).name());
                Table::keep(a, this_process());
                Table::keep(b, this_process());
            }
        }
    }
}

void test_a_read_makes_no_client_and_charges_nothing(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Zone zone(policy_of(algorithm, "10r/m"));
        assert_int_equal(zone.request(kClient, kNow, 0), Verdict::kAdmitted);
        assert_int_equal(zone.look(kClient).remaining, 10);
        assert_int_equal(zone.look(kClient).limit, 10);
        assert_int_equal(zone->clients(), 0);
        zone.request(kClient, kNow, 10);
        for (unsigned i = 0; i < 5; i++) {
            assert_int_equal(zone.request(kClient, kNow, 0), Verdict::kAdmitted);
            assert_int_equal(zone.look(kClient).remaining, 0);
        }
        assert_int_equal(zone.request(kClient), Verdict::kRejected);
    }
}

void test_a_read_beside_another_limit_charges_nothing(void**) {
    const Zone looked(policy_of(Algorithm::kSlidingWindow, "10r/m"));
    const Zone charged(policy_of(Algorithm::kFixedWindow, "10r/m"));
    TableLimit limits[] = {looked.limit(kClient, 0), charged.limit(kClient, 3)};
    assert_int_equal(check(limits, 2, kNow, this_process()), Verdict::kAdmitted);
    assert_int_equal(looked->clients(), 0);
    assert_int_equal(looked.used(kClient), 0);
    assert_int_equal(charged.used(kClient), 3);
}

// A request with limits in three zones; the zone at `full` rejects.
struct ThreeZones {
    Zone zones[3] = {
        Zone(policy_of(Algorithm::kTokenBucket, "10r/m")),
        Zone(policy_of(Algorithm::kSlidingLog, "10r/m")),
        Zone(policy_of(Algorithm::kFixedWindow, "10r/m")),
    };

    explicit ThreeZones(unsigned full) { zones[full].request(kClient, kNow, 10); }

    // Checks the zones in the order that `turn` gives.
    Verdict request(unsigned turn, std::uint64_t cost) {
        TableLimit limits[3] = {zones[turn % 3].limit(kClient, cost),
                                zones[(turn + 1) % 3].limit(kClient, cost),
                                zones[(turn + 2) % 3].limit(kClient, cost)};
        const Verdict verdict = check(limits, 3, kNow, this_process());
        for (unsigned i = 0; i < 3; i++) {
            decisions[(turn + i) % 3] = limits[i].decision;
        }
        return verdict;
    }

    Decision decisions[3];
};

void test_a_request_that_one_limit_rejects_is_charged_to_none(void**) {
    for (unsigned full = 0; full < 3; full++) {
        for (unsigned turn = 0; turn < 3; turn++) {
            ThreeZones check(full);
            assert_int_equal(check.request(turn, 4), Verdict::kRejected);
            for (unsigned i = 0; i < 3; i++) {
                assert_int_equal(check.zones[i].used(kClient), i == full ? 10 : 0);
                assert_int_equal(check.zones[i]->clients(), i == full ? 1 : 0);
                assert_int_equal(check.decisions[i].allowed, i != full);
            }
        }
    }
}

void test_a_rejected_request_does_not_change_the_counts_of_other_limits(void**) {
    ThreeZones check(1);
    check.zones[0].request(kClient, kNow, 2);
    check.zones[2].request(kClient, kNow, 3);
    assert_int_equal(check.request(0, 4), Verdict::kRejected);
    assert_int_equal(check.zones[0].used(kClient), 2);
    assert_int_equal(check.zones[1].used(kClient), 10);
    assert_int_equal(check.zones[2].used(kClient), 3);
}

void test_a_rejected_request_counts_where_rejected_requests_count(void**) {
    ThreeZones check(0);
    check.zones[2].policy().count_all = true;
    assert_int_equal(check.request(1, 4), Verdict::kRejected);
    assert_int_equal(check.zones[0].used(kClient), 10);
    assert_int_equal(check.zones[1].used(kClient), 0);
    assert_int_equal(check.zones[1]->clients(), 0);
    assert_int_equal(check.zones[2].used(kClient), 4);
}

void test_an_admitted_request_is_charged_to_all_limits(void**) {
    ThreeZones check(0);
    assert_int_equal(check.request(2, 0), Verdict::kAdmitted);
    for (Zone& zone : check.zones) {
        zone.clear();
    }
    assert_int_equal(check.request(2, 4), Verdict::kAdmitted);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(check.zones[i].used(kClient), 4);
        assert_int_equal(check.decisions[i].remaining, 6);
    }
}

void test_a_request_may_have_the_largest_number_of_limits(void**) {
    std::vector<Zone*> zones;
    std::vector<TableLimit> limits;
    for (std::size_t i = 0; i < kMaxLimits; i++) {
        zones.push_back(new Zone(policy_of(kEveryAlgorithm[i % kAlgorithms], "3r/m"), 4096));
        limits.push_back(zones.back()->limit(client_number(i)));
    }
    for (unsigned i = 0; i < 5; i++) {
        const Verdict verdict = check(limits.data(), limits.size(), kNow, this_process());
        assert_int_equal(verdict, i < 3 ? Verdict::kAdmitted : Verdict::kRejected);
    }
    for (std::size_t i = 0; i < kMaxLimits; i++) {
        assert_int_equal(zones[i]->used(client_number(i)), 3);
        delete zones[i];
    }
    assert_int_equal(check(nullptr, 0, kNow, this_process()), Verdict::kAdmitted);
}

void test_a_fresh_client_whose_first_request_is_rejected_is_not_kept(void**) {
    Zone zone(policy_of(Algorithm::kSlidingWindow, "10r/m"));
    assert_int_equal(zone.request(kClient, kNow, 11), Verdict::kRejected);
    assert_int_equal(zone->clients(), 0);
    zone.policy().count_all = true;
    assert_int_equal(zone.request(kClient, kNow, 11), Verdict::kRejected);
    assert_int_equal(zone->clients(), 1);
    assert_int_equal(zone.used(kClient), 10);
}

// A zone whose slots are all locked, each by another process.
struct Occupied {
    Zone zone;
    std::vector<Slot> slots;
    std::vector<Process> holders;

    explicit Occupied(std::size_t sets)
        : zone(small_zone(policy_of(Algorithm::kSlidingWindow, "10r/m"), sets)) {
        for (std::uint64_t i = 1; slots.size() < zone->slots(); i++) {
            assert_true(i < 10'000);
            const Process holder = made_up_process(static_cast<std::uint32_t>(i));
            const Slot slot = zone->acquire(client_number(i), zone.policy(), kNow, holder);
            if (slot.state != nullptr) {
                slots.push_back(slot);
                holders.push_back(holder);
            }
        }
    }

    void let_go() const {
        for (std::size_t i = 0; i < slots.size(); i++) {
            zone->keep(slots[i], holders[i]);
        }
    }
};

void test_the_verdict_is_busy_while_all_slots_of_a_client_are_locked(void**) {
    for (const std::size_t sets : {1, 2}) {
        const Occupied held(sets);
        assert_int_equal(held.slots.size(), 16 * sets);
        TableLimit limit = held.zone.limit(kClient);
        const Process process = counting_process();
        assert_int_equal(check(&limit, 1, kNow, process), Verdict::kBusy);
        assert_int_equal(waits, 0);
        assert_int_equal(held.zone->evictions(), 0);
        assert_int_equal(held.zone->clients(), 16 * sets);
        held.let_go();
        assert_int_equal(held.zone.request(kClient), Verdict::kAdmitted);
        assert_int_equal(held.zone->clients(), 16 * sets);
    }
}

void test_a_request_is_charged_to_no_limit_if_one_is_busy(void**) {
    const Zone known(policy_of(Algorithm::kSlidingWindow, "10r/m"));
    const Zone fresh(policy_of(Algorithm::kSlidingWindow, "10r/m"));
    const Occupied held(1);
    known.request(kClient, kNow, 3);
    for (unsigned turn = 0; turn < 3; turn++) {
        const Zone* zones[] = {&known, &fresh, &held.zone};
        TableLimit limits[] = {zones[turn]->limit(kClient), zones[(turn + 1) % 3]->limit(kClient),
                               zones[(turn + 2) % 3]->limit(kClient)};
        assert_int_equal(check(limits, 3, kNow, this_process()), Verdict::kBusy);
        assert_int_equal(known.used(kClient), 3);
        assert_int_equal(fresh->clients(), 0);
    }
    const Process process = counting_process();
    TableLimit limit = known.limit(kClient);
    assert_int_equal(check(&limit, 1, kNow, process), Verdict::kAdmitted);
    assert_int_equal(waits, 0);
}

void test_a_read_succeeds_while_all_slots_are_locked(void**) {
    const Occupied held(1);
    assert_int_equal(held.zone.request(kClient, kNow, 0), Verdict::kAdmitted);
    assert_int_equal(held.zone.look(kClient).remaining, 10);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_one_limit_admits_its_quota_and_rejects_the_rest),
        cmocka_unit_test(test_one_limit_is_checked_by_name_as_by_hash),
        cmocka_unit_test(test_a_read_makes_no_client_and_charges_nothing),
        cmocka_unit_test(test_a_read_beside_another_limit_charges_nothing),
        cmocka_unit_test(test_a_request_that_one_limit_rejects_is_charged_to_none),
        cmocka_unit_test(test_a_rejected_request_does_not_change_the_counts_of_other_limits),
        cmocka_unit_test(test_a_rejected_request_counts_where_rejected_requests_count),
        cmocka_unit_test(test_an_admitted_request_is_charged_to_all_limits),
        cmocka_unit_test(test_a_request_may_have_the_largest_number_of_limits),
        cmocka_unit_test(test_a_fresh_client_whose_first_request_is_rejected_is_not_kept),
        cmocka_unit_test(test_the_verdict_is_busy_while_all_slots_of_a_client_are_locked),
        cmocka_unit_test(test_a_request_is_charged_to_no_limit_if_one_is_busy),
        cmocka_unit_test(test_a_read_succeeds_while_all_slots_are_locked),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
