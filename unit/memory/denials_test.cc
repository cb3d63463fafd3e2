// The deny cache: how long and for which requests a rejection is found, and that no entry is a mixture of
// two.
#include "memory/denials.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "processes.h"
#include "shared_zone.h"

namespace rate_limit {
namespace {

constexpr Micros kMost = kSecond;
const Policy kTenAMinute = policy_of(Algorithm::kSlidingWindow, "10r/m");

// A cache in shared memory of its own.
struct Cache {
    // How far the clock of Redis is ahead.
    static constexpr Micros kAhead = 12345678;

    explicit Cache(std::size_t size = 16384)
        : memory(size), denials(Denials::create(memory.at(), size, kKey)) {
        assert_non_null(denials);
    }

    std::uint64_t hash(const char* client) const { return denials->hash(client); }

    bool find(std::uint64_t client, const Policy& policy, std::uint64_t cost, Micros now,
              Decision* decision) const {
        Micros time = 0;
        const bool known = denials->find(client, policy, cost, now, decision, &time);
        assert_int_equal(time, known ? now + kAhead : 0);
        return known;
    }

    void remember(std::uint64_t client, const Policy& policy, std::uint64_t cost, Micros now,
                  const Decision& decision, Micros most) const {
        denials->remember(client, policy, cost, now, now + kAhead, decision, most);
    }

    // The entries follow the first cache line, and the tags follow the entries.
    std::uint64_t* words() const { return memory.as<std::uint64_t>() + 8; }
    std::size_t word_count() const { return memory.size() / 8 - 8; }

    Memory memory;
    Denials* denials;
};

Decision rejection(Micros retry_after) {
    Decision decision = {};
    decision.limit = 10;
    decision.remaining = 3;
    decision.reset_after = 40 * kSecond;
    decision.retry_after = retry_after;
    decision.excess_milli = 1234;
    return decision;
}

bool found(const Cache& cache, Micros now, std::uint64_t cost = 1, const Policy& policy = kTenAMinute,
           const char* client = "alice") {
    Decision decision;
    return cache.find(cache.hash(client), policy, cost, now, &decision);
}

void remember(const Cache& cache, Micros now, Micros retry_after, std::uint64_t cost = 1,
              Micros most = kMost) {
    cache.remember(cache.hash("alice"), kTenAMinute, cost, now, rejection(retry_after), most);
}

void test_a_cache_needs_its_least_size(void**) {
    const Memory memory(4096);
    assert_null(Denials::create(memory.at(), Denials::least_size() - 1, kKey));
    assert_non_null(Denials::create(memory.at(), Denials::least_size(), kKey));
}

void test_an_empty_cache_finds_nobody(void**) {
    const Cache cache;
    assert_false(found(cache, 0));
    assert_false(found(cache, kNow));
    Decision decision;
    assert_false(cache.find(1, kTenAMinute, 1, -1, &decision));
}

void test_a_client_is_found_until_it_may_succeed_and_not_after(void**) {
    const Cache cache;
    remember(cache, kNow, 300'000);
    assert_true(found(cache, kNow));
    assert_true(found(cache, kNow + 299'999));
    assert_false(found(cache, kNow + 300'000));
    assert_false(found(cache, kNow + 300'001));
    assert_false(found(cache, kNow + kDay));
}

void test_a_client_is_found_for_no_longer_than_most(void**) {
    const Cache cache;
    remember(cache, kNow, 30 * kSecond, 1, 200'000);
    assert_true(found(cache, kNow + 199'999));
    assert_false(found(cache, kNow + 200'000));
}

void test_nothing_is_remembered_for_no_time(void**) {
    const Cache cache;
    remember(cache, kNow, 30 * kSecond, 1, 0);
    assert_false(found(cache, kNow));
    remember(cache, kNow, 0);
    assert_false(found(cache, kNow));
}

void test_the_numbers_are_those_of_the_moment(void**) {
    const Cache cache;
    remember(cache, kNow, 30 * kSecond);
    for (const Micros later : {Micros{0}, Micros{1}, Micros{500'000}, kMost - 1}) {
        Decision decision;
        assert_true(cache.find(cache.hash("alice"), kTenAMinute, 1, kNow + later, &decision));
        assert_false(decision.allowed);
        assert_int_equal(decision.rate, 0);
        assert_int_equal(decision.limit, 10);
        assert_int_equal(decision.remaining, 3);
        assert_int_equal(decision.reset_after, 40 * kSecond - later);
        assert_int_equal(decision.retry_after, 30 * kSecond - later);
        assert_int_equal(decision.delay, 0);
        assert_int_equal(decision.excess_milli, 1234);
    }
}

void test_extreme_numbers_come_back(void**) {
    const Cache cache;
    Policy policy =
        policy_of(Algorithm::kFixedWindow, "1r/s,2r/m,3r/h,4r/d,5r/w,6r/2w,7r/30d,1000000000r/366d");
    Decision given = {};
    given.rate = 7;
    given.remaining = ~std::uint32_t{0};
    given.reset_after = kForever;
    given.retry_after = kForever;
    given.excess_milli = 0xffffffff;
    cache.remember(cache.hash("alice"), policy, kMaxCost, kNow, given, kMost);
    Decision decision;
    assert_false(cache.find(cache.hash("alice"), policy, kMaxCost - 1, kNow, &decision));
    assert_true(cache.find(cache.hash("alice"), policy, kMaxCost, kNow, &decision));
    assert_int_equal(decision.rate, 7);
    assert_int_equal(decision.limit, 1'000'000'000);
    assert_int_equal(decision.remaining, given.remaining);
    assert_int_equal(decision.reset_after, kForever);
    assert_int_equal(decision.retry_after, kForever);
    assert_true(decision.excess_milli == given.excess_milli);
}

void test_an_excess_beyond_what_is_kept_is_the_most_that_is(void**) {
    const Cache cache;
    Decision given = rejection(kSecond);
    given.excess_milli = std::uint64_t{1} << 40;
    cache.remember(cache.hash("alice"), kTenAMinute, 1, kNow, given, kMost);
    Decision decision;
    assert_true(cache.find(cache.hash("alice"), kTenAMinute, 1, kNow, &decision));
    assert_int_equal(decision.excess_milli, 0xffffffff);
}

void test_the_time_is_that_of_redis_whatever_its_clock_shows(void**) {
    const Cache cache;
    for (const Micros clock : {Micros{0}, kNow - kYear, kNow + kYear}) {
        cache.denials->remember(cache.hash("alice"), kTenAMinute, 1, kNow, clock, rejection(kSecond), kMost);
        Decision decision;
        Micros time = -1;
        assert_true(cache.denials->find(cache.hash("alice"), kTenAMinute, 1, kNow + 777, &decision, &time));
        assert_int_equal(time, clock + 777);
    }
}

void test_never_stays_never_but_is_not_remembered_for_ever(void**) {
    const Cache cache;
    remember(cache, kNow, kNever, 11);
    Decision decision;
    assert_true(cache.find(cache.hash("alice"), kTenAMinute, 11, kNow + kMost - 1, &decision));
    assert_int_equal(decision.retry_after, kNever);
    assert_false(found(cache, kNow + kMost, 11));
    assert_false(found(cache, kNow, 10));
}

void test_a_wait_is_never_shorter_than_it_was(void**) {
    const Cache cache;
    remember(cache, kNow, 1);
    Decision decision;
    assert_true(cache.find(cache.hash("alice"), kTenAMinute, 1, kNow, &decision));
    assert_int_equal(decision.retry_after, 1);
}

// A request of higher cost is rejected too, but for longer.
void test_another_cost_is_not_known_to_be_rejected(void**) {
    const Cache cache;
    remember(cache, kNow, 30 * kSecond, 5);
    assert_true(found(cache, kNow, 5));
    for (const std::uint64_t cost : std::initializer_list<std::uint64_t>{1, 2, 4, 6, 1000, kMaxCost}) {
        assert_false(found(cache, kNow, cost));
    }
}

void test_other_clients_are_not_found(void**) {
    const Cache cache;
    remember(cache, kNow, 30 * kSecond);
    for (const char* client : {"", "alic", "alice ", "Alice", "bob"}) {
        assert_false(found(cache, kNow, 1, kTenAMinute, client));
    }
}

void test_another_policy_is_not_known_to_reject(void**) {
    const Cache cache;
    remember(cache, kNow, 30 * kSecond);
    std::vector<Policy> others(11, kTenAMinute);
    others[0].rates = rates_of("11r/m");
    others[1].rates = rates_of("10r/61s");
    others[2].rates = rates_of("10r/m,10r/m");
    others[3].algorithm = Algorithm::kFixedWindow;
    others[4].burst = 1;
    others[5].capacity = 1;
    others[6].buckets = 11;
    others[7].min_interval = 1;
    others[8].delay = 0;
    others[9].align_first = true;
    others[10].ceiling = 1;
    for (std::size_t i = 0; i < others.size(); i++) {
        if (found(cache, kNow, 1, others[i])) {
            fail_msg("policy %zu is taken for another", i);
        }
    }
    assert_true(found(cache, kNow));
}

void test_a_later_rejection_replaces_the_earlier(void**) {
    const Cache cache;
    remember(cache, kNow, 100'000);
    remember(cache, kNow + 50'000, 100'000);
    assert_true(found(cache, kNow + 149'999));
    remember(cache, kNow + 50'000, 10'000);
    assert_false(found(cache, kNow + 60'000));
}

void test_it_is_known_whether_anybody_may_be_found(void**) {
    const Cache cache;
    assert_false(cache.denials->any(kNow));
    remember(cache, kNow, 100'000);
    assert_true(cache.denials->any(kNow));
    assert_true(cache.denials->any(kNow + 99'999));
    assert_false(cache.denials->any(kNow + 100'000));
    // With several rejections, until the last one has ended.
    cache.remember(cache.hash("bob"), kTenAMinute, 1, kNow, rejection(kSecond), 50'000);
    assert_true(cache.denials->any(kNow + 99'999));
    cache.remember(cache.hash("bob"), kTenAMinute, 1, kNow, rejection(kSecond), 200'000);
    assert_true(cache.denials->any(kNow + 199'999));
    assert_false(cache.denials->any(kNow + 200'000));
}

void test_an_entry_with_any_word_torn_is_not_found(void**) {
    const Cache fresh;
    const std::vector<std::uint64_t> before(fresh.words(), fresh.words() + fresh.word_count());
    remember(fresh, kNow, 30 * kSecond);
    std::vector<std::size_t> written;
    for (std::size_t i = 0; i < fresh.word_count(); i++) {
        if (fresh.words()[i] != before[i]) {
            written.push_back(i);
        }
    }
    assert_in_range(written.size(), 8, 9);
    const std::size_t entry = written[0] / 8 * 8;
    for (std::size_t i = entry; i < entry + 8; i++) {
        for (unsigned bit = 0; bit < 64; bit++) {
            fresh.words()[i] ^= std::uint64_t{1} << bit;
            assert_false(found(fresh, kNow));
            fresh.words()[i] ^= std::uint64_t{1} << bit;
        }
        const std::uint64_t word = fresh.words()[i];
        fresh.words()[i] = 0;
        assert_true(word == 0 || !found(fresh, kNow));
        fresh.words()[i] = word;
    }
    assert_true(found(fresh, kNow));
}

void test_words_of_two_entries_of_one_client_do_not_mix(void**) {
    const Cache cache;
    std::vector<std::uint64_t> copies[2];
    for (unsigned i = 0; i < 2; i++) {
        Decision given = rejection(kSecond + i * 777);
        given.remaining += i;
        given.excess_milli += i;
        cache.remember(cache.hash("alice"), kTenAMinute, 1, kNow + i * 1000, given, 2 * kSecond);
        copies[i].assign(cache.words(), cache.words() + cache.word_count());
    }
    std::vector<std::size_t> differing;
    for (std::size_t i = 0; i < copies[0].size(); i++) {
        if (copies[0][i] != copies[1][i]) {
            differing.push_back(i);
        }
    }
    assert_true(differing.size() >= 4);
    unsigned whole = 0;
    for (unsigned mix = 0; mix < 1U << differing.size(); mix++) {
        for (std::size_t i = 0; i < differing.size(); i++) {
            cache.words()[differing[i]] = copies[mix >> i & 1][differing[i]];
        }
        whole += found(cache, kNow) ? 1 : 0;
    }
    assert_int_equal(whole, 2);
}

void test_many_clients_in_a_small_cache_are_found_or_not_but_never_wrong(void**) {
    const Cache cache(Denials::least_size());
    for (unsigned i = 0; i < 1000; i++) {
        Decision given = rejection(500'000);
        given.remaining = i;
        cache.remember(client_number(i), kTenAMinute, 1, kNow + i, given, kMost);
        Decision decision;
        assert_true(cache.find(client_number(i), kTenAMinute, 1, kNow + i, &decision));
    }
    unsigned known = 0;
    for (unsigned i = 0; i < 1000; i++) {
        Decision decision;
        if (cache.find(client_number(i), kTenAMinute, 1, kNow + 1000, &decision)) {
            assert_int_equal(decision.remaining, i);
            known++;
        }
    }
    assert_in_range(known, 28, 32);
}

void test_a_client_whose_time_is_over_gives_way_first(void**) {
    const Cache cache(Denials::least_size());
    for (unsigned i = 0; i < 100; i++) {
        cache.remember(client_number(i), kTenAMinute, 1, kNow - 100 * kSecond, rejection(kSecond), kMost);
    }
    unsigned lost = 0;
    for (unsigned i = 0; i < 8; i++) {
        cache.remember(client_number(1000 + i), kTenAMinute, 1, kNow, rejection(kSecond), kMost);
    }
    for (unsigned i = 0; i < 8; i++) {
        Decision decision;
        lost += cache.find(client_number(1000 + i), kTenAMinute, 1, kNow, &decision) ? 0 : 1;
    }
    assert_true(lost <= 2);
}

void test_a_client_that_was_forgotten_gives_way_first(void**) {
    const Cache cache(Denials::least_size());
    for (unsigned i = 0; i < 100; i++) {
        cache.remember(client_number(i), kTenAMinute, 1, kNow, rejection(kDay), kDay);
    }
    for (unsigned i = 0; i < 100; i++) {
        cache.denials->forget(client_number(i));
    }
    for (unsigned i = 0; i < 8; i++) {
        cache.remember(client_number(1000 + i), kTenAMinute, 1, kNow, rejection(kSecond), kMost);
    }
    for (unsigned i = 0; i < 8; i++) {
        Decision decision;
        assert_true(cache.find(client_number(1000 + i), kTenAMinute, 1, kNow, &decision));
    }
}

void test_a_cache_that_is_filled_by_half_has_lost_few(void**) {
    constexpr unsigned kPlaces = 20'000;
    constexpr unsigned kClients = kPlaces / 2;
    const Cache cache(std::size_t{kPlaces} * 66 + 64);
    for (unsigned i = 0; i < kClients; i++) {
        cache.remember(cache.hash(std::to_string(i).c_str()), kTenAMinute, 1, kNow, rejection(kSecond),
                       kMost);
    }
    unsigned lost = 0;
    for (unsigned i = 0; i < kClients; i++) {
        lost += found(cache, kNow, 1, kTenAMinute, std::to_string(i).c_str()) ? 0 : 1;
    }
    assert_in_range(lost, 1, kClients / 100);
}

void test_a_cache_stays_in_its_memory(void**) {
    for (std::size_t size = Denials::least_size(); size < Denials::least_size() + 600; size += 8) {
        const Memory memory(8192);
        auto* bytes = memory.as<unsigned char>();
        Denials* denials = Denials::create(bytes, size, kKey);
        std::fill(bytes + size, bytes + 8192, 0xaa);
        for (unsigned i = 0; i < 500; i++) {
            denials->remember(client_number(i), kTenAMinute, 1, kNow, kNow, rejection(kSecond), kMost);
        }
        assert_int_equal(std::count(bytes + size, bytes + 8192, 0xaa), 8192 - size);
    }
}

void test_a_cache_is_the_same_for_every_process(void**) {
    const Cache cache;
    Child child([&] {
        remember(cache, kNow, 30 * kSecond);
        return 0;
    });
    assert_int_equal(child.wait(), 0);
    assert_true(found(cache, kNow));
}

// Decision `number` of a writer: all fields derive from the number.
Decision numbered(std::uint32_t number) {
    Decision decision = {};
    decision.remaining = number;
    decision.reset_after = number * Micros{3};
    decision.retry_after = kSecond + number * Micros{7};
    decision.excess_milli = number * std::uint64_t{11};
    return decision;
}

void test_processes_that_write_one_entry_never_yield_a_mixture(void**) {
    const Cache cache;
    const Memory shared(4096);
    auto* stop = shared.as<std::atomic<bool>>();
    const auto hammer = [&](std::uint32_t start) {
        for (std::uint32_t i = start; !stop->load(std::memory_order_relaxed); i += 2) {
            cache.remember(cache.hash("alice"), kTenAMinute, 1, kNow, numbered(i % 1'000'000), kDay);
        }
        return 0;
    };
    Child even([&] { return hammer(0); });
    Child odd([&] { return hammer(1); });
    unsigned seen = 0;
    const double end = seconds() + 1;
    while (seconds() < end) {
        for (unsigned i = 0; i < 1000; i++) {
            Decision decision;
            if (cache.find(cache.hash("alice"), kTenAMinute, 1, kNow, &decision)) {
                const Decision expected = numbered(decision.remaining);
                assert_int_equal(decision.reset_after, expected.reset_after);
                assert_int_equal(decision.retry_after, expected.retry_after);
                assert_int_equal(decision.excess_milli, expected.excess_milli);
                seen++;
            }
        }
    }
    stop->store(true);
    assert_int_equal(even.wait() + odd.wait(), 0);
    assert_true(seen > 1000);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_cache_needs_its_least_size),
        cmocka_unit_test(test_an_empty_cache_finds_nobody),
        cmocka_unit_test(test_a_client_is_found_until_it_may_succeed_and_not_after),
        cmocka_unit_test(test_a_client_is_found_for_no_longer_than_most),
        cmocka_unit_test(test_nothing_is_remembered_for_no_time),
        cmocka_unit_test(test_the_numbers_are_those_of_the_moment),
        cmocka_unit_test(test_extreme_numbers_come_back),
        cmocka_unit_test(test_an_excess_beyond_what_is_kept_is_the_most_that_is),
        cmocka_unit_test(test_the_time_is_that_of_redis_whatever_its_clock_shows),
        cmocka_unit_test(test_never_stays_never_but_is_not_remembered_for_ever),
        cmocka_unit_test(test_a_wait_is_never_shorter_than_it_was),
        cmocka_unit_test(test_another_cost_is_not_known_to_be_rejected),
        cmocka_unit_test(test_other_clients_are_not_found),
        cmocka_unit_test(test_another_policy_is_not_known_to_reject),
        cmocka_unit_test(test_a_later_rejection_replaces_the_earlier),
        cmocka_unit_test(test_it_is_known_whether_anybody_may_be_found),
        cmocka_unit_test(test_an_entry_with_any_word_torn_is_not_found),
        cmocka_unit_test(test_words_of_two_entries_of_one_client_do_not_mix),
        cmocka_unit_test(test_many_clients_in_a_small_cache_are_found_or_not_but_never_wrong),
        cmocka_unit_test(test_a_client_whose_time_is_over_gives_way_first),
        cmocka_unit_test(test_a_client_that_was_forgotten_gives_way_first),
        cmocka_unit_test(test_a_cache_that_is_filled_by_half_has_lost_few),
        cmocka_unit_test(test_a_cache_stays_in_its_memory),
        cmocka_unit_test(test_a_cache_is_the_same_for_every_process),
        cmocka_unit_test(test_processes_that_write_one_entry_never_yield_a_mixture),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
