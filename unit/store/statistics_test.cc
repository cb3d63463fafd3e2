// Statistics: counts of several processes add up, and dead processes have no open breakers.
#include <algorithm>
#include <memory>
#include <numeric>

#include "memory/processes.h"
#include "store/reason.h"
#include "store/redis_statistics.h"

namespace rate_limit {
namespace {

constexpr unsigned kProcesses = 4;
constexpr unsigned kRounds = 1'500'000;

void test_a_decision_counts_once_in_each_place(void**) {
    ZoneStatistics statistics;
    statistics.count_decision(0, DecidedBy::kMemory, true, 40);
    statistics.count_decision(1, DecidedBy::kRedis, true, 700);
    statistics.count_decision(2, DecidedBy::kCache, false, 60);
    const ZoneTotals totals = statistics.read();
    assert_int_equal(totals.allowed, 2);
    assert_int_equal(totals.rejected, 1);
    assert_int_equal(totals.decided_by[static_cast<unsigned>(DecidedBy::kNobody)], 0);
    assert_int_equal(totals.decided_by[static_cast<unsigned>(DecidedBy::kMemory)], 1);
    assert_int_equal(totals.decided_by[static_cast<unsigned>(DecidedBy::kRedis)], 1);
    assert_int_equal(totals.decided_by[static_cast<unsigned>(DecidedBy::kCache)], 1);
    assert_int_equal(totals.checks.count, 3);
    assert_int_equal(totals.checks.sum, 800);
    assert_int_equal(totals.delayed + totals.dry_run_delayed + totals.dry_run_rejected, 0);
}

void test_delays_dry_runs_and_reasons_have_counters_of_their_own(void**) {
    ZoneStatistics statistics;
    statistics.count_delay(0);
    statistics.count_dry_run(1, true);
    statistics.count_dry_run(1, true);
    statistics.count_dry_run(2, false);
    statistics.count_reason(3, reason_of(redis::Error::kTimedOut));
    statistics.count_reason(3, kNoSlot);
    statistics.count_reason(4, kNoRate);
    const ZoneTotals totals = statistics.read();
    assert_int_equal(totals.delayed, 1);
    assert_int_equal(totals.dry_run_rejected, 2);
    assert_int_equal(totals.dry_run_delayed, 1);
    assert_int_equal(totals.reasons[reason_of(redis::Error::kTimedOut)], 1);
    assert_int_equal(totals.reasons[kNoSlot], 1);
    assert_int_equal(totals.reasons[kNoRate], 1);
    assert_int_equal(totals.allowed + totals.rejected + totals.checks.count, 0);
}

void test_bypassed_requests_have_a_counter_of_their_own(void**) {
    ZoneStatistics statistics;
    statistics.count_bypass(0, Bypass::kEmptyKey);
    statistics.count_bypass(kStripes + 1, Bypass::kEmptyKey);
    statistics.count_bypass(2, Bypass::kRateOff);
    const ZoneTotals totals = statistics.read();
    assert_int_equal(totals.bypassed[static_cast<unsigned>(Bypass::kEmptyKey)], 2);
    assert_int_equal(totals.bypassed[static_cast<unsigned>(Bypass::kRateOff)], 1);
    assert_int_equal(totals.allowed + totals.rejected + totals.checks.count, 0);
    assert_string_equal(bypass_name(Bypass::kEmptyKey), "empty_key");
    assert_string_equal(bypass_name(Bypass::kRateOff), "rate_off");
}

void test_a_value_equal_to_a_bound_counts_below_it(void**) {
    ZoneStatistics statistics;
    for (const Micros bound : kTimeBoundsMicros) {
        statistics.count_decision(0, DecidedBy::kMemory, true, bound);
        statistics.count_decision(0, DecidedBy::kMemory, true, bound + 1);
    }
    statistics.count_decision(0, DecidedBy::kMemory, true, -5);  // the clock was set back
    const TimeTotals checks = statistics.read().checks;
    assert_int_equal(checks.counts[0], 2);
    for (unsigned i = 1; i < kTimeBounds; i++) {
        assert_int_equal(checks.counts[i], 2);
    }
    assert_int_equal(checks.counts[kTimeBounds], 1);
    assert_int_equal(checks.count, 2 * kTimeBounds + 1);
    const Micros bounds =
        std::accumulate(std::begin(kTimeBoundsMicros), std::end(kTimeBoundsMicros), Micros{0});
    assert_int_equal(checks.sum, 2 * bounds + kTimeBounds);
}

void test_batches_are_counted_by_their_size(void**) {
    RedisStatistics statistics;
    for (const std::size_t groups : {1, 2, 3, 4, 1024, 1025}) {
        statistics.count_batch(0, groups);
    }
    const BatchTotals batches = statistics.read().batches;
    assert_int_equal(batches.counts[0], 1);
    assert_int_equal(batches.counts[1], 1);
    assert_int_equal(batches.counts[2], 2);
    assert_int_equal(batches.counts[kBatchBounds - 1], 1);
    assert_int_equal(batches.counts[kBatchBounds], 1);
    assert_int_equal(batches.sum, 1 + 2 + 3 + 4 + 1024 + 1025);
    assert_int_equal(batches.count, 6);
}

void test_reasons_have_names_of_their_own(void**) {
    std::vector<std::string> names;
    for (Reason reason = 0; reason < kReasons; reason++) {
        names.emplace_back(reason_name(reason));
    }
    std::sort(names.begin(), names.end());
    assert_true(std::adjacent_find(names.begin(), names.end()) == names.end());
}

// Old and new workers may use the same stripe, and so may two of many workers.
void test_processes_that_count_at_once_lose_nothing(void**) {
    const Memory memory(sizeof(ZoneStatistics) + sizeof(Meeting));
    auto* statistics = new (memory.at()) ZoneStatistics;
    auto* meeting = reinterpret_cast<Meeting*>(statistics + 1);
    const auto work = [&](unsigned process) {
        meeting->join(kProcesses);
        for (unsigned i = 0; i < kRounds; i++) {
            statistics->count_decision(process * kStripes, DecidedBy::kMemory, i % 5 != 0, i % 300);
            statistics->count_reason(process % 2, kNoSlot);
        }
        return 0;
    };
    Child one([&] { return work(1); });
    Child two([&] { return work(2); });
    Child three([&] { return work(3); });
    work(0);
    assert_int_equal(one.wait() + two.wait() + three.wait(), 0);
    const ZoneTotals totals = statistics->read();
    assert_int_equal(totals.rejected, kProcesses * kRounds / 5);
    assert_int_equal(totals.allowed, kProcesses * kRounds / 5 * 4);
    assert_int_equal(totals.decided_by[static_cast<unsigned>(DecidedBy::kMemory)], kProcesses * kRounds);
    assert_int_equal(totals.checks.count, kProcesses * kRounds);
    assert_int_equal(totals.reasons[kNoSlot], kProcesses * kRounds);
    std::uint64_t sum = 0;
    for (unsigned i = 0; i < kRounds; i++) {
        sum += i % 300;
    }
    assert_int_equal(totals.checks.sum, kProcesses * sum);
}

void test_calls_are_counted_as_the_client_reports_them(void**) {
    RedisStatistics statistics;
    const Process process = this_process();
    RedisCounter counter(&statistics, 3, process);
    counter.on_round_trip(60);
    counter.on_round_trip(2'000'000);
    counter.on_error(redis::Error::kTimedOut);
    counter.on_batch(7);
    const RedisTotals totals = statistics.read();
    assert_int_equal(totals.round_trips.counts[1], 1);
    assert_int_equal(totals.round_trips.counts[kTimeBounds], 1);
    assert_int_equal(totals.round_trips.sum, 2'000'060);
    assert_int_equal(totals.errors[static_cast<unsigned>(redis::Error::kTimedOut)], 1);
    assert_int_equal(totals.batches.sum, 7);
}

void test_a_process_is_open_while_any_of_its_breakers_is(void**) {
    RedisStatistics statistics;
    const Process process = this_process();
    const Process other = made_up_process(1);
    RedisCounter counter(&statistics, 0, process);
    RedisCounter others(&statistics, 1, other);
    assert_int_equal(statistics.open_breakers(process), 0);
    counter.on_open();
    counter.on_open();
    assert_int_equal(statistics.open_breakers(process), 1);
    others.on_open();
    assert_int_equal(statistics.open_breakers(process), 2);
    assert_int_equal(statistics.open_breakers(other), 2);
    counter.on_close();
    assert_int_equal(statistics.open_breakers(process), 2);
    counter.on_close();
    assert_int_equal(statistics.open_breakers(process), 1);
    others.on_close();
    assert_int_equal(statistics.open_breakers(process), 0);
    assert_int_equal(statistics.read().opened, 3);
}

void test_a_dead_process_has_no_open_breaker(void**) {
    const Memory memory(sizeof(RedisStatistics));
    auto* statistics = new (memory.at()) RedisStatistics;
    Child child([&] {
        const Process process = this_process();
        RedisCounter(statistics, 0, process).on_open();
        return 0;
    });
    const Process dead = {static_cast<std::uint32_t>(child.pid()), process_is_alive, yield_to_others,
                          monotonic_clock};
    assert_int_equal(child.wait(), 0);
    const Process process = this_process();
    assert_int_equal(statistics->open_breakers(process), 0);
    assert_int_equal(statistics->read().opened, 1);
    // Nor has a new process with the id of the dead process.
    RedisCounter counter(statistics, 0, dead);
    assert_int_equal(statistics->open_breakers(dead), 0);
}

void test_entries_of_dead_processes_are_used_again(void**) {
    RedisStatistics statistics;
    const auto all_live = [](std::uint32_t) { return true; };
    const auto all_dead = [](std::uint32_t process) { return process >= 5000; };
    for (std::uint32_t i = 0; i < 200; i++) {
        statistics.set_open(true, {1000 + i, all_live, yield_to_others, monotonic_clock});
    }
    const Process late = {5000, all_dead, yield_to_others, monotonic_clock};
    assert_int_equal(statistics.open_breakers(late), 0);
    statistics.set_open(true, late);
    assert_int_equal(statistics.open_breakers(late), 1);
    statistics.set_open(false, late);
    assert_int_equal(statistics.open_breakers(late), 0);
}

void test_a_stopped_counter_counts_nothing_and_has_no_open_breaker(void**) {
    RedisStatistics statistics;
    const Process process = this_process();
    RedisCounter counter(&statistics, 0, process);
    counter.on_open();
    counter.stop();
    assert_int_equal(statistics.open_breakers(process), 0);
    counter.on_open();
    counter.on_close();
    counter.on_close();
    counter.on_round_trip(1);
    counter.on_batch(1);
    counter.on_error(redis::Error::kClosed);
    const RedisTotals totals = statistics.read();
    assert_int_equal(totals.round_trips.count + totals.batches.count, 0);
    assert_int_equal(totals.errors[static_cast<unsigned>(redis::Error::kClosed)], 0);
    assert_int_equal(totals.opened, 1);
    assert_int_equal(statistics.open_breakers(process), 0);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_decision_counts_once_in_each_place),
        cmocka_unit_test(test_delays_dry_runs_and_reasons_have_counters_of_their_own),
        cmocka_unit_test(test_bypassed_requests_have_a_counter_of_their_own),
        cmocka_unit_test(test_a_value_equal_to_a_bound_counts_below_it),
        cmocka_unit_test(test_batches_are_counted_by_their_size),
        cmocka_unit_test(test_reasons_have_names_of_their_own),
        cmocka_unit_test(test_processes_that_count_at_once_lose_nothing),
        cmocka_unit_test(test_calls_are_counted_as_the_client_reports_them),
        cmocka_unit_test(test_a_process_is_open_while_any_of_its_breakers_is),
        cmocka_unit_test(test_a_dead_process_has_no_open_breaker),
        cmocka_unit_test(test_entries_of_dead_processes_are_used_again),
        cmocka_unit_test(test_a_stopped_counter_counts_nothing_and_has_no_open_breaker),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
