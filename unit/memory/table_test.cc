// A table that one process uses: clients, locks, numbers.
#include "memory/table.h"

#include <algorithm>
#include <set>
#include <vector>

#include "shared_zone.h"
#include "statistics/reminder.h"

namespace rate_limit {
namespace {

const Policy kTenAMinute = policy_of(Algorithm::kSlidingWindow, "10r/m");

void test_a_table_needs_exactly_its_least_size(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        for (const char* rates : {"5r/m", "5r/m,100r/d", "1r/s,2r/m,3r/h"}) {
            Policy policy = policy_of(algorithm, rates);
            policy.min_interval = algorithm == Algorithm::kGcra ? kSecond : 0;
            const StateLayout layout = layout_of(policy);
            const std::size_t least = Table::least_size(layout);
            const Memory memory(least);
            assert_null(Table::create(memory.at(), least - 1, layout, kKey));
            assert_null(Table::create(memory.at(), 0, layout, kKey));
            Table* table = Table::create(memory.at(), least, layout, kKey);
            assert_ptr_equal(table, memory.at());
            assert_int_equal(table->slots(), 16);
            assert_true(table->layout() == layout);
        }
    }
}

void test_a_table_stays_in_its_memory(void**) {
    const Policy policy = policy_of(Algorithm::kSlidingLog, "3r/m");
    const StateLayout layout = layout_of(policy);
    for (std::size_t more = 0; more < 2000; more += 37) {
        const std::size_t size = Table::least_size(layout) + more;
        const Memory memory(size + 64);
        std::fill_n(memory.as<unsigned char>(), size + 64, 0xa5);
        Table* table = Table::create(memory.at(), size, layout, kKey);
        for (unsigned i = 0; i < 300; i++) {
            TableLimit limit = {table, &policy, client_number(i), 3, {}};
            assert_int_equal(check(&limit, 1, kNow, this_process()), Verdict::kAdmitted);
        }
        for (std::size_t i = size; i < size + 64; i++) {
            assert_int_equal(memory.as<unsigned char>()[i], 0xa5);
        }
    }
}

void test_a_new_client_is_fresh_and_its_state_is_zero(void**) {
    const Zone zone(kTenAMinute);
    const Slot slot = zone->acquire(7, zone.policy(), kNow, this_process());
    assert_non_null(slot.state);
    assert_true(slot.fresh);
    assert_int_equal(*slot.hash, 7);
    for (std::size_t i = 0; i < words_of(zone->layout()); i++) {
        assert_int_equal(slot.state[i], 0);
    }
    zone->keep(slot, this_process());
    assert_int_equal(*slot.lock, 0);
}

void test_state_that_is_kept_is_found_again(void**) {
    const Zone zone(kTenAMinute);
    Slot slot = zone->acquire(7, zone.policy(), kNow, this_process());
    slot.state[0] = 0x1234;
    slot.state[1] = 0x5678;
    zone->keep(slot, this_process());
    for (const bool look : {true, false}) {
        slot = look ? zone->find(7, this_process()) : zone->acquire(7, zone.policy(), kNow, this_process());
        assert_non_null(slot.state);
        assert_false(slot.fresh);
        assert_int_equal(slot.state[0], 0x1234);
        assert_int_equal(slot.state[1], 0x5678);
        assert_int_equal(*slot.lock, getpid());
        zone->keep(slot, this_process());
    }
    assert_int_equal(zone->clients(), 1);
}

void test_a_client_that_is_dropped_is_forgotten(void**) {
    const Zone zone(kTenAMinute);
    Slot slot = zone->acquire(7, zone.policy(), kNow, this_process());
    slot.state[0] = slot.state[1] = ~std::uint64_t{0};
    zone->keep(slot, this_process());
    slot = zone->find(7, this_process());
    zone->drop(slot, this_process());
    assert_int_equal(*slot.lock, 0);
    assert_null(zone->find(7, this_process()).state);
    assert_int_equal(zone->clients(), 0);
    slot = zone->acquire(7, zone.policy(), kNow, this_process());
    assert_true(slot.fresh);
    assert_int_equal(slot.state[0] | slot.state[1], 0);
    zone->keep(slot, this_process());
}

void test_find_makes_no_client(void**) {
    const Zone zone(kTenAMinute);
    assert_null(zone->find(7, this_process()).state);
    assert_int_equal(zone->clients(), 0);
}

void test_slots_are_numbered_and_a_client_is_found_by_its_number(void**) {
    const Zone zone(kTenAMinute);
    std::set<std::uint64_t> numbers;
    for (unsigned i = 0; i < 1000; i++) {
        const std::uint64_t client = client_number(i);
        const Slot entered = zone->acquire(client, zone.policy(), kNow, this_process());
        assert_non_null(entered.state);
        assert_true(entered.number < zone->slots());
        assert_true(numbers.insert(entered.number).second);
        zone->keep(entered, this_process());
        const Slot found = zone->find(client, entered.number, this_process());
        assert_ptr_equal(found.state, entered.state);
        assert_int_equal(found.number, entered.number);
        assert_false(found.fresh);
        zone->keep(found, this_process());
    }
}

void test_a_client_that_no_longer_has_its_slot_is_searched_for(void**) {
    const Zone zone(kTenAMinute);
    const Slot alice = zone->acquire(7, zone.policy(), kNow, this_process());
    zone->keep(alice, this_process());
    const Slot bob = zone->acquire(8, zone.policy(), kNow, this_process());
    zone->keep(bob, this_process());
    for (const std::uint64_t number : {bob.number, (alice.number + 1) % zone->slots()}) {
        const Slot slot = zone->find(7, number, this_process());
        assert_ptr_equal(slot.state, alice.state);
        assert_int_equal(slot.number, alice.number);
        zone->keep(slot, this_process());
    }
    assert_true(zone->forget(7, this_process()));
    assert_null(zone->find(7, alice.number, this_process()).state);
    assert_null(zone->find(7, bob.number, this_process()).state);
}

void test_every_client_has_a_state_of_its_own(void**) {
    const Zone zone(kTenAMinute);
    constexpr unsigned kClients = 20000;
    for (std::uint64_t i = 1; i <= kClients; i++) {
        const Slot slot = zone->acquire(client_number(i), zone.policy(), kNow, this_process());
        assert_true(slot.fresh);
        slot.state[0] = i;
        slot.state[1] = ~i;
        zone->keep(slot, this_process());
        assert_true(i % 1000 != 0 || zone->clients() == i);
    }
    for (std::uint64_t i = 1; i <= kClients; i++) {
        const Slot slot = zone->find(client_number(i), this_process());
        assert_non_null(slot.state);
        assert_int_equal(slot.state[0], i);
        assert_int_equal(slot.state[1], ~i);
        zone->keep(slot, this_process());
    }
    assert_int_equal(zone->evictions(), 0);
}

void test_no_client_has_the_hash_of_a_free_slot(void**) {
    const Zone zone(kTenAMinute);
    std::set<std::uint64_t> seen;
    for (unsigned i = 0; i < 10000; i++) {
        const std::uint64_t hash = zone->hash(std::to_string(i));
        assert_int_not_equal(hash, 0);
        assert_int_equal(hash, siphash(kKey, std::to_string(i)));
        seen.insert(hash);
    }
    assert_int_equal(seen.size(), 10000);
}

void test_a_reminder_comes_at_once_then_at_most_so_often(void**) {
    Reminder reminder;
    assert_true(reminder.is_due(kNow, kMinute));
    assert_false(reminder.is_due(kNow, kMinute));
    assert_false(reminder.is_due(kNow + kMinute - 1, kMinute));
    assert_true(reminder.is_due(kNow + kMinute, kMinute));
    assert_false(reminder.is_due(kNow + kMinute + 1, kMinute));
    // True also after the clock was set back.
    assert_true(reminder.is_due(kNow, kMinute));
}

// The set of a client in an empty table of 256 sets with the hash key `key`.
std::size_t set_of(const std::string& name, const HashKey& key) {
    const StateLayout layout = layout_of(kTenAMinute);
    static const Memory memory(size_of_sets(layout, 256));
    static Table* table = nullptr;
    static HashKey of_table = {};
    if (table == nullptr || of_table.low != key.low) {
        table = Table::create(memory.at(), memory.size(), layout, key);
        of_table = key;
    }
    const Slot slot = table->acquire(table->hash(name), kTenAMinute, kNow, this_process());
    table->drop(slot, this_process());
    const std::size_t set_size = size_of_sets(layout, 2) - size_of_sets(layout, 1);
    const auto offset = reinterpret_cast<unsigned char*>(slot.hash) - memory.as<unsigned char>();
    return (static_cast<std::size_t>(offset) - (size_of_sets(layout, 1) - set_size)) / set_size;
}

void test_clients_that_crowd_one_set_under_one_key_spread_under_another(void**) {
    std::vector<std::string> crowd;
    for (unsigned i = 0; crowd.size() < 40; i++) {
        assert_true(i < 100'000);
        if (set_of(std::to_string(i), kKey) == 9) {
            crowd.push_back(std::to_string(i));
        }
    }
    std::set<std::size_t> sets;
    for (const std::string& name : crowd) {
        sets.insert(set_of(name, {kKey.low + 1, kKey.high}));
    }
    assert_true(sets.size() > 30);
}

void test_clients_of_a_large_table_are_told_as_an_estimate(void**) {
    const Policy policy = policy_of(Algorithm::kSlidingWindow, "10r/m");
    for (const std::size_t sets : {4096U, 4097U, 20'000U}) {
        const Zone zone = small_zone(policy, sets);
        assert_int_equal(zone->slots(), sets * 16);
        assert_int_equal(zone->clients(), 0);
        const std::uint64_t clients = sets * 4;
        for (std::uint64_t i = 0; i < clients; i++) {
            zone.request(client_number(i));
        }
        const std::uint64_t told = zone->clients();
        if (sets == 4096) {
            assert_int_equal(told, clients);
        }
        assert_in_range(told, clients * 95 / 100, clients * 105 / 100);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_table_needs_exactly_its_least_size),
        cmocka_unit_test(test_a_table_stays_in_its_memory),
        cmocka_unit_test(test_a_new_client_is_fresh_and_its_state_is_zero),
        cmocka_unit_test(test_state_that_is_kept_is_found_again),
        cmocka_unit_test(test_a_client_that_is_dropped_is_forgotten),
        cmocka_unit_test(test_find_makes_no_client),
        cmocka_unit_test(test_slots_are_numbered_and_a_client_is_found_by_its_number),
        cmocka_unit_test(test_a_client_that_no_longer_has_its_slot_is_searched_for),
        cmocka_unit_test(test_every_client_has_a_state_of_its_own),
        cmocka_unit_test(test_no_client_has_the_hash_of_a_free_slot),
        cmocka_unit_test(test_a_reminder_comes_at_once_then_at_most_so_often),
        cmocka_unit_test(test_clients_that_crowd_one_set_under_one_key_spread_under_another),
        cmocka_unit_test(test_clients_of_a_large_table_are_told_as_an_estimate),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
