// Unsent counts, and which client is evicted from a full table with unsent counts.
#include "memory/unsent_counts.h"

#include <malloc.h>

#include <algorithm>
#include <set>

#include "unsent.h"

namespace rate_limit {
namespace {

const Policy kTenAMinute = policy_of(Algorithm::kSlidingWindow, "10r/m");
const Policy kManyAMinute = policy_of(Algorithm::kSlidingWindow, "1000r/m");

Policy counting_all(const Policy& policy) {
    Policy counting = policy;
    counting.count_all = true;
    return counting;
}

void test_a_table_with_unsent_counts_needs_exactly_its_least_size(void**) {
    for (const char* rates : {"5r/m", "5r/m,100r/d"}) {
        for (const bool varied : {false, true}) {
            const Policy policy = policy_of(Algorithm::kSlidingBuckets, rates);
            const StateLayout layout = varied ? layout_of(policy, 3, 0) : layout_of(policy);
            const std::size_t least = Table::least_size(layout, true);
            const Memory memory(least);
            assert_null(Table::create(memory.at(), least - 1, layout, kKey, true));
            Table* table = Table::create(memory.at(), least, layout, kKey, true);
            assert_int_equal(table->slots(), 16);
            assert_true(table->has_unsent_counts());
        }
    }
}

void test_a_table_with_unsent_counts_uses_its_memory_and_stays_in_it(void**) {
    const Policy policy = policy_of(Algorithm::kGcra, "30r/m,100r/h");
    const StateLayout layout = layout_of(policy, 4, 0);
    const std::size_t set = 16 * (12 + 8 * words_of(layout) + count_size(layout));
    for (std::size_t more = 0; more < 20000; more += 977) {
        const std::size_t size = Table::least_size(layout, true) + more;
        const Memory memory(size + 64);
        std::fill_n(memory.as<unsigned char>() + size, 64, 0xa5);
        Table* table = Table::create(memory.at(), size, layout, kKey, true);
        assert_in_range(table->slots() / 16, more / (set + 70), 1 + more / set);
        for (unsigned i = 0; i < 300; i++) {
            const std::string name(kLongestName, static_cast<char>('a' + i % 26));
            TableLimit limit = {table, &policy, client_number(i), 3, {}, name};
            assert_int_equal(check(&limit, 1, kNow, this_process()), Verdict::kAdmitted);
        }
        assert_int_equal(table->clients(), table->slots());
        for (std::size_t i = size; i < size + 64; i++) {
            assert_int_equal(memory.as<unsigned char>()[i], 0xa5);
        }
    }
}

void test_a_table_without_unsent_counts_is_as_large_as_ever(void**) {
    const StateLayout layout = layout_of(kTenAMinute);
    assert_int_equal(Table::least_size(layout), 128 + 16 * (12 + 16));
    const Zone zone(kTenAMinute);
    assert_false(zone->has_unsent_counts());
    assert_int_equal(zone->slots(), (kMegabyteZone - 128) / (16 * (12 + 16)) * 16);
    assert_int_equal(zone->overshoot(), 0);
}

// Each request then writes one cache line of unsent counts.
void test_unsent_counts_begin_with_a_line_of_the_cache(void**) {
    for (const std::size_t sets : {1, 3, 33, 100}) {
        const Zone zone = zone_with_unsent_counts(kTenAMinute, sets);
        const auto first = reinterpret_cast<std::uintptr_t>(zone->unsent_counts().at(0));
        assert_int_equal((first - reinterpret_cast<std::uintptr_t>(&zone.table())) % 64, 0);
        assert_int_equal(count_size(zone->layout()) % 16, 0);
    }
}

void test_what_a_client_is_admitted_is_summed_under_its_name(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Zone zone = zone_with_unsent_counts(policy_of(algorithm, "10r/m"), 8);
        use(zone, "alice");
        use(zone, "bob", 3);
        use(zone, "alice", 5);
        assert_int_equal(unsent_of(zone, "alice").unsent, 6);
        assert_string_equal(unsent_of(zone, "alice").name.c_str(), "alice");
        assert_int_equal(unsent_of(zone, "bob").unsent, 3);
        assert_string_equal(unsent_of(zone, "bob").name.c_str(), "bob");
        assert_int_equal(unsent_of(zone, "bob").sending, 0);
        assert_int_equal(marks(zone.table()), 2);
    }
}

void test_a_request_that_is_not_charged_is_not_owed(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Zone zone = zone_with_unsent_counts(policy_of(algorithm, "10r/m"), 8);
        assert_int_equal(use(zone, "alice", 11), Verdict::kRejected);
        assert_false(unsent_of(zone, "alice").known);
        use(zone, "alice", 8);
        assert_int_equal(use(zone, "alice", 3), Verdict::kRejected);
        assert_int_equal(use(zone, "alice", 0), Verdict::kAdmitted);
        TableLimit limit = limit_of(zone, "alice");
        assert_int_equal(precheck(&limit, 1, kNow, this_process()), Verdict::kAdmitted);
        note_rejection(&limit, 1, kNow, this_process());
        assert_int_equal(unsent_of(zone, "alice").unsent, 8);
        assert_int_equal(use(zone, "bob", 0), Verdict::kAdmitted);
        assert_int_equal(marks(zone.table()), 1);
    }
}

void test_of_several_limits_all_owe_or_none(void**) {
    const Zone zones[2] = {zone_with_unsent_counts(kTenAMinute, 2), zone_with_unsent_counts(kManyAMinute, 2)};
    for (const std::uint64_t cost : {4U, 7U}) {
        TableLimit limits[2] = {limit_of(zones[0], "alice", cost), limit_of(zones[1], "alice", cost)};
        check(limits, 2, kNow, this_process());
    }
    for (const Zone& zone : zones) {
        assert_int_equal(unsent_of(zone, "alice").unsent, 4);
    }
}

void test_where_rejected_requests_count_they_are_owed(void**) {
    for (const Algorithm algorithm : {Algorithm::kFixedWindow, Algorithm::kSlidingWindow,
                                      Algorithm::kSlidingBuckets, Algorithm::kSlidingLog}) {
        const Zone zone = zone_with_unsent_counts(counting_all(policy_of(algorithm, "10r/m")), 8);
        assert_int_equal(use(zone, "alice", 11), Verdict::kRejected);
        assert_int_equal(unsent_of(zone, "alice").unsent, 11);
        assert_int_equal(use(zone, "alice", 2), Verdict::kRejected);
        assert_int_equal(unsent_of(zone, "alice").unsent, 13);
        TableLimit limit = limit_of(zone, "bob", 3);
        note_rejection(&limit, 1, kNow, this_process());
        assert_int_equal(unsent_of(zone, "bob").unsent, 3);
        assert_true(unsent_of(zone, "bob").marked);
    }
}

void test_a_rejected_request_owes_no_more_than_it_raises_a_level(void**) {
    for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra}) {
        const Zone zone = zone_with_unsent_counts(counting_all(policy_of(algorithm, "10r/m")), 8);
        use(zone, "alice", 8);
        assert_int_equal(use(zone, "alice", 5), Verdict::kRejected);
        assert_int_equal(unsent_of(zone, "alice").unsent, 10);
        assert_int_equal(use(zone, "alice", 5), Verdict::kRejected);
        assert_int_equal(unsent_of(zone, "alice").unsent, 10);
        assert_int_equal(use(zone, "alice", 5, kNow + 12 * kSecond), Verdict::kRejected);
        assert_int_equal(unsent_of(zone, "alice").unsent, 12);
        // The second rate has room for it.
        const Zone two = zone_with_unsent_counts(counting_all(policy_of(algorithm, "10r/m,1000r/h")), 8);
        use(two, "alice", 10);
        use(two, "alice", 5);
        assert_int_equal(unsent_of(two, "alice").unsent, 15);
    }
}

void test_a_rejection_for_coming_too_soon_owes_what_it_raises(void**) {
    Policy policy = counting_all(policy_of(Algorithm::kTokenBucket, "10r/m"));
    policy.min_interval = 10 * kSecond;
    const Zone zone = zone_with_unsent_counts(policy, 8);
    use(zone, "alice", 2);
    assert_int_equal(use(zone, "alice", 3), Verdict::kRejected);
    assert_int_equal(unsent_of(zone, "alice").unsent, 5);
}

void test_what_is_owed_stays_at_the_most_that_it_can_be(void**) {
    const Zone zone = zone_with_unsent_counts(policy_of(Algorithm::kFixedWindow, "1000000000r/s"), 2);
    use(zone, "alice", 7);
    const Slot slot = zone->find(zone->hash("alice"), this_process());
    UnsentCount& counts = zone->unsent_of(slot);
    counts.send(counts.unsent(), 1, 2, kNow);
    for (unsigned i = 0; i < 10; i++) {
        counts.add(kMaxCount / 5);
    }
    assert_int_equal(counts.unsent(), kMaxCount);
    assert_int_equal(counts.sending(), 7);
    zone->keep(slot, this_process());
}

void test_a_name_is_entered_once_and_only_if_it_is_short(void**) {
    const Zone zone = zone_with_unsent_counts(kTenAMinute, 2);
    const std::uint64_t client = zone->hash("alice");
    TableLimit limit = zone.limit(client);
    limit.name = {};
    check(&limit, 1, kNow, this_process());
    assert_string_equal(unsent_of(zone.table(), client).name.c_str(), "");
    const std::string longest(kLongestName, 'x');
    for (const std::string& name : {longest + "y", longest, std::string("bob")}) {
        limit.name = name;
        check(&limit, 1, kNow, this_process());
        assert_true(unsent_of(zone.table(), client).name == (name.size() > kLongestName ? "" : longest));
    }
    assert_int_equal(unsent_of(zone.table(), client).unsent, 4);
    // Nothing was written after the room for the name, where the next count begins.
    std::uint64_t empty = 0;
    for (std::uint64_t i = 0; i < zone->slots(); i++) {
        empty += zone->unsent_counts().at(i)->any() ? 0 : 1;
    }
    assert_int_equal(empty, zone->slots() - 1);
}

void assert_same_rates(const RateList& a, const RateList& b) {
    assert_int_equal(a.size, b.size);
    for (std::uint32_t i = 0; i < a.size; i++) {
        assert_int_equal(a.rates[i].count, b.rates[i].count);
        assert_int_equal(a.rates[i].period, b.rates[i].period);
    }
}

void test_where_rates_differ_an_unsent_count_has_the_last_rates_of_its_client(void**) {
    for (const Algorithm algorithm : {Algorithm::kSlidingWindow, Algorithm::kSlidingLog}) {
        const Policy zone_policy = policy_of(algorithm, "10r/m");
        const StateLayout layout = layout_of(zone_policy, 3, 1000);
        const Zone zone(zone_policy, layout, size_with_unsent(layout, 2), true);
        for (const char* rates : {"10r/m", "20r/m,1000r/366d", "100r/s,200r/m,300r/h", "999r/w"}) {
            const Policy policy = policy_of(algorithm, rates);
            TableLimit limit = limit_of(zone, "alice");
            limit.policy = &policy;
            check(&limit, 1, kNow, this_process());
            assert_same_rates(unsent_of(zone, "alice").rates, policy.rates);
            // The rates of the client elsewhere.
            const RateList others = rates_of("77r/h,5r/s");
            limit.rates = &others;
            check(&limit, 1, kNow, this_process());
            assert_same_rates(unsent_of(zone, "alice").rates, others);
        }
    }
}

void test_an_unsent_count_for_one_rate_keeps_no_rates(void**) {
    const Zone zone = zone_with_unsent_counts(kTenAMinute, 2);
    use(zone, "alice");
    assert_int_equal(count_size(zone->layout()), sizeof(UnsentCount));
    assert_int_equal(unsent_of(zone, "alice").rates.size, 0);
}

void test_those_who_owe_are_found_each_once(void**) {
    const Zone zone = zone_with_unsent_counts(kTenAMinute, 20);
    for (unsigned round = 0; round < 5; round++) {
        zone.clear();
        std::set<std::uint64_t> expected;
        for (unsigned i = 0; i < 100 * round; i++) {
            use(zone, name_of(i));
            expected.insert(zone->hash(name_of(i)));
        }
        std::set<std::uint64_t> found;
        std::uint64_t from = 0;
        for (;;) {
            const Slot slot = zone->next_unsent(&from, this_process());
            if (slot.state == nullptr) {
                break;
            }
            assert_true(zone->unsent_of(slot).any());
            assert_true(found.insert(*slot.hash).second);
            zone->keep(slot, this_process());
        }
        assert_int_equal(from, zone->slots());
        for (auto it = expected.begin(); it != expected.end();) {
            it = zone->find(*it, this_process()).state == nullptr ? expected.erase(it) : std::next(it);
        }
        assert_true(found == expected);
        assert_true(round < 2 || found.size() > 90);
    }
}

void test_a_mark_goes_only_when_nothing_is_owed(void**) {
    const Zone zone = zone_with_unsent_counts(kTenAMinute, 2);
    use(zone, "alice", 2);
    const Slot slot = zone->find(zone->hash("alice"), this_process());
    UnsentCount& counts = zone->unsent_of(slot);
    zone->unmark(slot);
    assert_int_equal(marks(zone.table()), 1);
    counts.send(2, 1, 1, kNow);
    zone->unmark(slot);
    assert_int_equal(marks(zone.table()), 1);
    counts.arrive();
    zone->unmark(slot);
    assert_int_equal(marks(zone.table()), 0);
    zone->keep(slot, this_process());
    use(zone, "alice");
    assert_int_equal(marks(zone.table()), 1);
}

void test_the_mark_of_a_client_that_was_dropped_goes_when_it_is_found(void**) {
    const Zone zone = zone_with_unsent_counts(kTenAMinute, 2);
    use(zone, "alice");
    use(zone, "bob");
    zone->drop(zone->find(zone->hash("alice"), this_process()), this_process());
    assert_int_equal(marks(zone.table()), 2);
    std::uint64_t from = 0;
    for (unsigned i = 0; i < 2; i++) {
        const Slot slot = zone->next_unsent(&from, this_process());
        if (slot.state != nullptr) {
            assert_int_equal(*slot.hash, zone->hash("bob"));
            zone->keep(slot, this_process());
        }
    }
    assert_int_equal(from, zone->slots());
    assert_int_equal(marks(zone.table()), 1);
    // Its slot is free, and its count is 0.
    for (unsigned i = 0; i < 30; i++) {
        use(zone, name_of(i));
    }
    assert_int_equal(zone->evictions(), 0);
    use(zone, "alice");
    assert_int_equal(unsent_of(zone, "alice").unsent, 1);
}

// Fills a zone of one set with clients. Client i has used 1 + i, which is unsent if `is_unsent` returns true.
template <class IsUnsent>
void fill(const Zone& zone, IsUnsent is_unsent) {
    for (unsigned i = 0; i < 16; i++) {
        use(zone, name_of(i), 1 + i);
        if (!is_unsent(i)) {
            confirm(zone, name_of(i));
        }
    }
    assert_int_equal(zone->slots(), 16);
    assert_int_equal(zone->evictions(), 0);
}

void test_who_used_least_gives_way_whether_it_owes_or_not_and_the_loss_is_counted(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Zone zone = zone_with_unsent_counts(policy_of(algorithm, "1000r/m"), 1);
        fill(zone, [](unsigned i) { return i % 2 == 0; });
        std::uint64_t lost = 0;
        for (unsigned i = 0; i < 16; i++) {
            use(zone, name_of(100 + i), 500);
            lost += i % 2 == 0 ? 1 + i : 0;
            assert_int_equal(zone->evictions(), i + 1);
            assert_int_equal(zone->lost(), lost);
            for (unsigned j = 0; j < 16; j++) {
                assert_int_equal(unsent_of(zone, name_of(j)).known, j > i);
            }
        }
    }
}

// The number of known clients from `from` to `to`.
unsigned known(const Zone& zone, unsigned from, unsigned to) {
    unsigned count = 0;
    for (unsigned i = from; i < to; i++) {
        count += unsent_of(zone, name_of(i)).known ? 1 : 0;
    }
    return count;
}

// Although it was inserted first, and so matters for a shorter time.
void test_of_those_who_used_the_same_who_owes_gives_way_last(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Zone zone = zone_with_unsent_counts(policy_of(algorithm, "1000r/m"), 1);
        for (unsigned i = 0; i < 16; i++) {
            use(zone, name_of(i), 3, kNow + i);
            if (i >= 8) {
                confirm(zone, name_of(i));
            }
        }
        for (unsigned i = 0; i < 16; i++) {
            use(zone, name_of(100 + i), 500, kNow + 16);
            assert_int_equal(zone->evictions(), i + 1);
            assert_int_equal(known(zone, 8, 16), i < 8 ? 7 - i : 0);
            assert_int_equal(known(zone, 0, 8), i < 8 ? 8 : 15 - i);
            assert_int_equal(zone->lost(), i < 8 ? 0 : (i - 7) * 3);
        }
    }
}

void test_what_is_on_its_way_counts_as_owed(void**) {
    const Zone zone = zone_with_unsent_counts(kManyAMinute, 1);
    for (unsigned i = 0; i < 16; i++) {
        use(zone, name_of(i), 3);
        if (i != 0) {
            confirm(zone, name_of(i));
        }
    }
    send(zone.table(), zone->hash(name_of(0)), 1, 1);
    for (unsigned i = 0; i < 15; i++) {
        use(zone, name_of(100 + i), 500);
        assert_true(unsent_of(zone, name_of(0)).known);
    }
    // The call may have arrived.
    use(zone, name_of(200), 500);
    assert_false(unsent_of(zone, name_of(0)).known);
    assert_int_equal(zone->lost(), 0);
}

void test_who_owes_what_no_longer_counts_gives_way_like_anybody(void**) {
    const Zone zone = zone_with_unsent_counts(kManyAMinute, 1);
    fill(zone, [](unsigned i) { return i == 3; });
    const Micros later = kNow + 2 * kMinute;
    for (unsigned i = 0; i < 16; i++) {
        if (i != 3) {
            use(zone, name_of(i), 1, later);
            confirm(zone, name_of(i));
        }
    }
    use(zone, name_of(100), 1, later);
    assert_false(unsent_of(zone, name_of(3)).known);
    assert_int_equal(zone->evictions(), 0);
}

void test_a_client_that_replaces_another_has_no_unsent_count(void**) {
    const Zone zone = zone_with_unsent_counts(kManyAMinute, 1);
    fill(zone, [](unsigned) { return true; });
    for (unsigned i = 0; i < 100; i++) {
        use(zone, name_of(100 + i), 20 + i);
        const UnsentCopy unsent = unsent_of(zone, name_of(100 + i));
        assert_int_equal(unsent.unsent, 20 + i);
        assert_int_equal(unsent.sending, 0);
        assert_true(unsent.name == name_of(100 + i));
        assert_int_equal(marks(zone.table()), 16);
        send(zone.table(), zone->hash(name_of(100 + i)), 5, 6);
    }
}

void test_a_refused_newcomer_leaves_no_mark_of_who_gave_way(void**) {
    const Zone zone = zone_with_unsent_counts(kManyAMinute, 1);
    fill(zone, [](unsigned) { return true; });
    assert_int_equal(use(zone, "alice", 1001), Verdict::kRejected);
    assert_int_equal(zone->clients(), 15);
    assert_int_equal(marks(zone.table()), 15);
}

void import(const Zone& from, const Zone& to) {
    to->import(from.table(), from.policy().rates, to.policy(), kNow, this_process());
}

void test_what_is_owed_moves_to_a_table_of_another_shape(void**) {
    const Zone from = zone_with_unsent_counts(kManyAMinute, 20);
    const Zone to = zone_with_unsent_counts(policy_of(Algorithm::kSlidingWindow, "1000r/m,5000r/h"), 30);
    for (unsigned i = 0; i < 100; i++) {
        use(from, name_of(i), 1 + i);
        if (i % 3 == 0) {
            send(from.table(), from->hash(name_of(i)), 77, i);
        }
        if (i % 2 == 0) {
            use(from, name_of(i), 5);
        }
    }
    import(from, to);
    for (unsigned i = 0; i < 100; i++) {
        const UnsentCopy before = unsent_of(from, name_of(i));
        const UnsentCopy unsent = unsent_of(to, name_of(i));
        const std::uint32_t later = i % 2 == 0 ? 5 : 0;
        assert_int_equal(unsent.unsent, (i % 3 == 0 ? 0 : 1 + i) + later);
        assert_int_equal(unsent.sending, i % 3 == 0 ? 1 + i : 0);
        assert_true(unsent.name == name_of(i));
        assert_int_equal(unsent.marked, unsent.unsent + unsent.sending != 0);
        // Both tables send what is in flight with the same number, so it is charged once.
        assert_int_equal(before.unsent, 0);
        assert_int_equal(before.sending, unsent.sending);
        if (unsent.sending != 0) {
            assert_int_equal(unsent.sender, 77);
            assert_int_equal(unsent.sequence, i);
        }
        assert_int_equal(to.used(to->hash(name_of(i))), 1 + i + later);
    }
}

void test_two_tables_never_send_under_one_name(void**) {
    const Zone from = zone_with_unsent_counts(kManyAMinute, 2);
    const Zone to(kManyAMinute, layout_of(kManyAMinute), 1 << 16, true, {3, 4});
    const std::uint64_t sender = to->unsent_counts().sender();
    assert_int_not_equal(sender, from->unsent_counts().sender());
    import(from, to);
    assert_int_equal(to->unsent_counts().sender(), sender);
}

void test_rates_are_carried_where_they_differ(void**) {
    const StateLayout layout = layout_of(kTenAMinute, 2, 0);
    const Zone same(kTenAMinute);
    const Zone fixed = zone_with_unsent_counts(kTenAMinute, 4);
    const Zone varied(kTenAMinute, layout, 1 << 16, true);
    const Zone wider(kTenAMinute, layout_of(kTenAMinute, 4, 0), 1 << 16, true);
    use(fixed, "alice");
    import(fixed, varied);
    assert_same_rates(unsent_of(varied, "alice").rates, kTenAMinute.rates);
    const Policy other = policy_of(Algorithm::kSlidingWindow, "7r/m,70r/h");
    TableLimit limit = limit_of(varied, "alice");
    limit.policy = &other;
    check(&limit, 1, kNow, this_process());
    import(varied, wider);
    assert_same_rates(unsent_of(wider, "alice").rates, other.rates);
}

void test_a_table_that_takes_over_without_unsent_counts_leaves_them(void**) {
    const Zone with = zone_with_unsent_counts(kTenAMinute, 4);
    const Zone without(kTenAMinute);
    use(with, "alice", 4);
    import(with, without);
    assert_int_equal(unsent_of(with, "alice").unsent, 4);
    assert_int_equal(without.used(without->hash("alice")), 4);
    const Zone again = zone_with_unsent_counts(kTenAMinute, 4);
    import(without, again);
    const UnsentCopy unsent = unsent_of(again, "alice");
    assert_true(unsent.known);
    assert_int_equal(unsent.unsent, 0);
    assert_true(unsent.name.empty());
    use(again, "alice");
    assert_string_equal(unsent_of(again, "alice").name.c_str(), "alice");
}

void test_a_request_allocates_nothing(void**) {
    const StateLayout layout = layout_of(kTenAMinute, 2, 0);
    const Zone zone(counting_all(kTenAMinute), layout, 1 << 16, true);
    const std::string name = "alice";
    const Process process = this_process();
    const std::size_t before = mallinfo2().uordblks;
    for (unsigned i = 0; i < 100; i++) {
        TableLimit limit = zone.limit(client_number(i % 7));
        limit.name = name;
        check(&limit, 1, kNow, process);
        assert_int_equal(mallinfo2().uordblks, before);
    }
}

Micros steady = 1000 * kSecond;
std::uint32_t dead = 0;
unsigned questions = 0;

Process process(std::uint32_t number) {
    Process process = made_up_process(number);
    process.clock = [] { return steady; };
    process.alive = [](std::uint32_t process) {
        questions++;
        return process != dead;
    };
    return process;
}

void test_one_process_at_a_time_leads(void**) {
    using Lead = Leader::Lead;
    const Zone zone = zone_with_unsent_counts(kTenAMinute, 1);
    UnsentCounts& unsent_counts = zone->unsent_counts();
    const Process first = process(1);
    const Process second = process(2);
    assert_int_equal(unsent_counts.leader().lead(first), Lead::kNew);
    assert_int_equal(unsent_counts.leader().lead(second), Lead::kNo);
    assert_int_equal(unsent_counts.leader().lead(first), Lead::kYes);
    unsent_counts.leader().resign(second);
    assert_int_equal(unsent_counts.leader().lead(second), Lead::kNo);
    unsent_counts.leader().resign(first);
    assert_int_equal(unsent_counts.leader().lead(second), Lead::kNew);
    assert_int_equal(unsent_counts.leader().lead(first), Lead::kNo);
    assert_int_equal(questions, 0);
    // The leader dies; others notice after it has not called for a second.
    dead = second.self;
    assert_int_equal(unsent_counts.leader().lead(first), Lead::kNo);
    steady += kSecond;
    assert_int_equal(unsent_counts.leader().lead(first), Lead::kNew);
    // The leader lives but does nothing.
    steady += 59 * kSecond;
    dead = 0;
    assert_int_equal(unsent_counts.leader().lead(second), Lead::kNo);
    steady += kSecond;
    assert_int_equal(unsent_counts.leader().lead(second), Lead::kNew);
    assert_int_equal(unsent_counts.leader().lead(first), Lead::kNo);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_table_with_unsent_counts_needs_exactly_its_least_size),
        cmocka_unit_test(test_a_table_with_unsent_counts_uses_its_memory_and_stays_in_it),
        cmocka_unit_test(test_a_table_without_unsent_counts_is_as_large_as_ever),
        cmocka_unit_test(test_unsent_counts_begin_with_a_line_of_the_cache),
        cmocka_unit_test(test_what_a_client_is_admitted_is_summed_under_its_name),
        cmocka_unit_test(test_a_request_that_is_not_charged_is_not_owed),
        cmocka_unit_test(test_of_several_limits_all_owe_or_none),
        cmocka_unit_test(test_where_rejected_requests_count_they_are_owed),
        cmocka_unit_test(test_a_rejected_request_owes_no_more_than_it_raises_a_level),
        cmocka_unit_test(test_a_rejection_for_coming_too_soon_owes_what_it_raises),
        cmocka_unit_test(test_what_is_owed_stays_at_the_most_that_it_can_be),
        cmocka_unit_test(test_a_name_is_entered_once_and_only_if_it_is_short),
        cmocka_unit_test(test_where_rates_differ_an_unsent_count_has_the_last_rates_of_its_client),
        cmocka_unit_test(test_an_unsent_count_for_one_rate_keeps_no_rates),
        cmocka_unit_test(test_those_who_owe_are_found_each_once),
        cmocka_unit_test(test_a_mark_goes_only_when_nothing_is_owed),
        cmocka_unit_test(test_the_mark_of_a_client_that_was_dropped_goes_when_it_is_found),
        cmocka_unit_test(test_who_used_least_gives_way_whether_it_owes_or_not_and_the_loss_is_counted),
        cmocka_unit_test(test_of_those_who_used_the_same_who_owes_gives_way_last),
        cmocka_unit_test(test_what_is_on_its_way_counts_as_owed),
        cmocka_unit_test(test_who_owes_what_no_longer_counts_gives_way_like_anybody),
        cmocka_unit_test(test_a_client_that_replaces_another_has_no_unsent_count),
        cmocka_unit_test(test_a_refused_newcomer_leaves_no_mark_of_who_gave_way),
        cmocka_unit_test(test_what_is_owed_moves_to_a_table_of_another_shape),
        cmocka_unit_test(test_two_tables_never_send_under_one_name),
        cmocka_unit_test(test_rates_are_carried_where_they_differ),
        cmocka_unit_test(test_a_table_that_takes_over_without_unsent_counts_leaves_them),
        cmocka_unit_test(test_a_request_allocates_nothing),
        cmocka_unit_test(test_one_process_at_a_time_leads),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
