// Readers of a live rate see a change completely or not at all, even if its writer dies.
#include "memory/live_rate.h"

#include <memory>
#include <vector>

#include "processes.h"

namespace rate_limit {
namespace {

using Kind = LiveRate::Kind;

RateList rates_of(std::string_view text) {
    RateList rates = {};
    assert_null(parse_rates(text, &rates));
    return rates;
}

void expect_rates(const LiveRate& live, std::string_view text) {
    std::uint64_t version = 0;
    RateList rates = {};
    assert_int_equal(live.read(&version, &rates), Kind::kRates);
    assert_true(same_rates(rates, rates_of(text)));
    assert_int_equal(version, live.version());
}

// Eight rates that derive from one number.
RateList rates_number(std::uint32_t number) {
    RateList rates = {};
    rates.size = 1 + number % kMaxRates;
    for (std::uint32_t i = 0; i < rates.size; i++) {
        rates.rates[i] = {number + i + 1, static_cast<Micros>(number % 1000 + i + 1) * kSecond};
    }
    return rates;
}

bool is_whole(const RateList& rates) {
    return rates.size != 0 && same_rates(rates, rates_number(rates.rates[0].count - 1));
}

void test_memory_that_is_all_zero_has_no_rate(void**) {
    const Memory memory(sizeof(LiveRate));
    const auto* live = memory.as<LiveRate>();
    std::uint64_t version = 1;
    RateList rates = {};
    assert_int_equal(live->version(), 0);
    assert_int_equal(live->read(&version, &rates), Kind::kNone);
    assert_int_equal(version, 0);
}

void test_each_change_has_a_number_of_its_own(void**) {
    LiveRate live;
    live.set(rates_of("10r/s"));
    expect_rates(live, "10r/s");
    const std::uint64_t first = live.version();
    live.set(rates_of("1r/s,2r/m,3r/h,4r/d,5r/w,1000000000r/366d,7r/7s,8r/8s"));
    expect_rates(live, "1r/s,2r/m,3r/h,4r/d,5r/w,1000000000r/366d,7r/7s,8r/8s");
    assert_true(live.version() > first);
    live.set(rates_of("off"));
    expect_rates(live, "off");
}

void test_back_to_the_configuration_is_a_change_too(void**) {
    LiveRate live;
    live.set(rates_of("10r/s"));
    const std::uint64_t first = live.version();
    live.clear();
    std::uint64_t version = 0;
    RateList rates = {};
    assert_int_equal(live.read(&version, &rates), Kind::kNone);
    assert_true(version > first);
    live.set(rates_of("10r/s"));
    expect_rates(live, "10r/s");
}

void test_lists_are_the_same_if_all_of_them_is(void**) {
    assert_true(same_rates(rates_of("off"), rates_of("off")));
    assert_true(same_rates(rates_of("60r/m,5r/d"), rates_of("60r/60s,5r/24h")));
    assert_false(same_rates(rates_of("60r/m"), rates_of("off")));
    assert_false(same_rates(rates_of("60r/m"), rates_of("61r/m")));
    assert_false(same_rates(rates_of("60r/m"), rates_of("60r/h")));
    assert_false(same_rates(rates_of("60r/m,5r/d"), rates_of("60r/m,6r/d")));
}

void test_readers_see_whole_rates_while_several_write(void**) {
    constexpr unsigned kWriters = 2;
    constexpr std::uint32_t kChanges = 20'000;
    struct Shared {
        LiveRate live;
        std::atomic<unsigned> done;
    };
    const Memory memory(sizeof(Shared));
    auto* shared = memory.as<Shared>();
    std::vector<std::unique_ptr<Child>> children;
    for (unsigned i = 0; i < kWriters; i++) {
        children.push_back(std::make_unique<Child>([&, i] {
            for (std::uint32_t change = 0; change < kChanges; change++) {
                shared->live.set(rates_number(change * kWriters + i));
            }
            shared->done++;
            return 0;
        }));
    }
    children.push_back(std::make_unique<Child>([&] {
        std::uint64_t last = 0;
        bool wrong = false;
        while (shared->done != kWriters) {
            std::uint64_t version = 0;
            RateList rates = {};
            const Kind kind = shared->live.read(&version, &rates);
            wrong = wrong || version < last || (kind == Kind::kRates && !is_whole(rates));
            last = version;
        }
        return wrong ? 1 : 0;
    }));
    for (const auto& child : children) {
        assert_int_equal(child->wait(), 0);
    }
    assert_int_equal(shared->live.version(), kWriters * kChanges);
    shared->live.set(rates_of("5r/s"));
    expect_rates(shared->live, "5r/s");
}

void test_who_is_killed_while_it_writes_harms_nobody(void**) {
    constexpr unsigned kRounds = 50;
    const Memory memory(sizeof(LiveRate));
    auto* live = memory.as<LiveRate>();
    live->set(rates_number(0));
    for (unsigned round = 0; round < kRounds; round++) {
        Child writer([&] {
            for (std::uint32_t change = 0;; change++) {
                live->set(rates_number(change));
            }
            return 0;
        });
        const std::uint64_t before = live->version();
        while (live->version() < before + 10) {
            sched_yield();
        }
        writer.kill();
        writer.wait();
        std::uint64_t version = 0;
        RateList rates = {};
        assert_int_equal(live->read(&version, &rates), Kind::kRates);
        assert_true(is_whole(rates));
        live->set(rates_of("5r/s"));
        expect_rates(*live, "5r/s");
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_that_is_all_zero_has_no_rate),
        cmocka_unit_test(test_each_change_has_a_number_of_its_own),
        cmocka_unit_test(test_back_to_the_configuration_is_a_change_too),
        cmocka_unit_test(test_lists_are_the_same_if_all_of_them_is),
        cmocka_unit_test(test_readers_see_whole_rates_while_several_write),
        cmocka_unit_test(test_who_is_killed_while_it_writes_harms_nobody),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
