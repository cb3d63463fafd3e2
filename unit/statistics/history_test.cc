// The history of a zone has the last two minutes, one moment each second, even if processes die or are slow.
#include "statistics/history.h"

#include <memory>

#include "statistics/statistics.h"
#include "test.h"

namespace rate_limit {
namespace {

constexpr Micros kStart = 1000 * kSecond;

ZoneHistory::Moment moment_of(Micros now, std::uint64_t allowed) {
    return {now, {allowed, allowed / 2, allowed / 3, allowed / 5}};
}

void record(ZoneHistory* history, Micros now, std::uint64_t allowed) {
    assert_true(history->is_due(now));
    history->add(moment_of(now, allowed));
}

std::unique_ptr<ZoneHistory> make_history(unsigned seconds) {
    auto history = std::make_unique<ZoneHistory>();
    for (unsigned i = 0; i < seconds; i++) {
        record(history.get(), kStart + i * kSecond, i * 30);
    }
    return history;
}

void test_a_new_history_is_empty(void**) { assert_true(ZoneHistory().read(kStart).empty()); }

void test_moments_have_their_times_and_counts(void**) {
    const auto history = make_history(3);
    const auto moments = history->read(kStart + 3 * kSecond);
    assert_int_equal(moments.size(), 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(moments[i].time, kStart + i * kSecond);
        assert_int_equal(moments[i].counts[kCountAllowed], i * 30);
        assert_int_equal(moments[i].counts[kCountRejected], i * 15);
        assert_int_equal(moments[i].counts[kCountDelayed], i * 10);
        assert_int_equal(moments[i].counts[kCountErrors], i * 6);
    }
}

void test_one_of_several_processes_records_each_second(void**) {
    ZoneHistory history;
    unsigned recorded = 0;
    for (Micros now = kStart; now < kStart + 60 * kSecond; now += kSecond) {
        for (unsigned process = 0; process < 8; process++) {
            // The timers of the processes ring at different times of a second, and up to 2 ms late.
            const Micros rings = now + process * kSecond / 10 + (now / kSecond + process) % 3 * 1000;
            if (history.is_due(rings)) {
                recorded++;
                assert_int_equal(process, 0);
                history.add(moment_of(rings, recorded));
            }
        }
    }
    assert_int_equal(recorded, 60);
}

void test_another_process_continues(void**) {
    const auto history = make_history(5);
    assert_true(history->is_due(kStart + 5 * kSecond));  // by a process that dies before it adds
    assert_false(history->is_due(kStart + 5 * kSecond + kSecond / 2));
    record(history.get(), kStart + 6 * kSecond + kSecond / 2, 500);
    const auto moments = history->read(kStart + 7 * kSecond);
    assert_int_equal(moments.size(), 6);
    assert_int_equal(moments.back().counts[kCountAllowed], 500);
}

void test_only_two_minutes_are_read(void**) {
    const auto history = make_history(1000);
    const Micros last = kStart + 999 * kSecond;
    auto moments = history->read(last);
    assert_int_equal(moments.size(), 121);
    assert_int_equal(moments.front().time, last - kHistoryLength);
    assert_int_equal(moments.front().counts[kCountAllowed], 879 * 30);
    assert_int_equal(moments.back().time, last);
    // While nothing is recorded, old moments are left out.
    moments = history->read(last + 100 * kSecond);
    assert_int_equal(moments.size(), 21);
    assert_true(history->read(last + 1000 * kSecond).empty());
}

void test_a_late_moment_is_left_out(void**) {
    // A process reads the clock or the counters, and is stopped for seconds before it writes.
    const Micros now = kStart + 5 * kSecond;
    const ZoneHistory::Moment late[] = {{now, {119, 60, 40, 24}},
                                        {now, {120, 59, 40, 24}},
                                        {now, {120, 60, 39, 24}},
                                        {now, {120, 60, 40, 23}}};
    for (const ZoneHistory::Moment& moment : late) {
        const auto history = make_history(5);
        history->add(moment);
        assert_int_equal(history->read(kStart + 6 * kSecond).size(), 5);
    }
    const auto history = make_history(5);
    history->add(moment_of(kStart + 3 * kSecond + 1, 120));
    record(history.get(), kStart + 5 * kSecond, 120);
    const auto moments = history->read(kStart + 6 * kSecond);
    assert_int_equal(moments.size(), 6);
    assert_int_equal(moments[4].time, kStart + 4 * kSecond);
    assert_int_equal(moments[5].time, kStart + 5 * kSecond);
}

void test_the_counters_of_all_workers_are_added_up(void**) {
    const auto statistics = std::make_unique<ZoneStatistics>();
    for (unsigned stripe = 0; stripe < 20; stripe++) {
        statistics->count_decision(stripe, DecidedBy::kMemory, true, 1);
        statistics->count_decision(stripe, DecidedBy::kMemory, true, 1);
        statistics->count_decision(stripe, DecidedBy::kRedis, false, 1);
        statistics->count_reason(stripe, 1);
        statistics->count_reason(stripe, stripe % 3 + 2);
    }
    statistics->count_delay(7);
    const ZoneHistory::Moment moment = statistics->read_moment(kStart);
    assert_int_equal(moment.counts[kCountAllowed], 40);
    assert_int_equal(moment.counts[kCountRejected], 20);
    assert_int_equal(moment.counts[kCountDelayed], 1);
    assert_int_equal(moment.counts[kCountErrors], 40);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_new_history_is_empty),
        cmocka_unit_test(test_moments_have_their_times_and_counts),
        cmocka_unit_test(test_one_of_several_processes_records_each_second),
        cmocka_unit_test(test_another_process_continues),
        cmocka_unit_test(test_only_two_minutes_are_read),
        cmocka_unit_test(test_a_late_moment_is_left_out),
        cmocka_unit_test(test_the_counters_of_all_workers_are_added_up),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
