// Values of rate=$variable are parsed once, whatever they say.
#include "algorithms/rate_memo.h"

#include <string>

#include "test.h"

namespace rate_limit {
namespace {

const Policy kPolicy;
const StateLayout kLayout = layout_of(kPolicy, 2, 0);

void test_each_value_is_parsed_once(void**) {
    RateMemo memo;
    for (int round = 0; round < 100; round++) {
        const RateList* rates = memo.read("100r/m,1000r/h", kPolicy, kLayout);
        assert_non_null(rates);
        assert_int_equal(rates->size, 2);
        assert_int_equal(rates->rates[1].count, 1000);
        const RateList* off = memo.read("off", kPolicy, kLayout);
        assert_non_null(off);
        assert_int_equal(off->size, 0);
        assert_null(memo.read("many", kPolicy, kLayout));
        assert_null(memo.read("1r/s,2r/m,3r/h", kPolicy, kLayout));  // more than the zone has room for
    }
    assert_int_equal(memo.parsed(), 4);
}

void test_what_says_nothing_is_no_rate(void**) {
    RateMemo memo;
    assert_null(memo.read("", kPolicy, kLayout));
    assert_null(memo.read(std::string(RateMemo::kLongest + 1, '1'), kPolicy, kLayout));
    assert_null(memo.read(std::string(RateMemo::kLongest, '1'), kPolicy, kLayout));
    assert_int_equal(memo.parsed(), 1);
}

// As many plans as operators have, in any constellation of their hashes.
void test_twenty_values_stay_known(void**) {
    for (int shift = 0; shift < 50; shift++) {
        RateMemo memo;
        for (int round = 0; round < 3; round++) {
            for (int i = 1; i <= 20; i++) {
                const std::string text = std::to_string(1000 * shift + i) + "r/s";
                const RateList* rates = memo.read(text, kPolicy, kLayout);
                assert_non_null(rates);
                assert_int_equal(rates->rates[0].count, 1000 * shift + i);
            }
        }
        assert_int_equal(memo.parsed(), 20);
    }
}

// Values chosen by an attacker do not change the meaning of other values.
void test_more_values_than_entries_stay_right(void**) {
    RateMemo memo;
    for (int round = 0; round < 2; round++) {
        for (int i = 1; i <= 5000; i++) {
            const RateList* rates = memo.read(std::to_string(i) + "r/s", kPolicy, kLayout);
            assert_non_null(rates);
            assert_int_equal(rates->rates[0].count, i);
        }
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_each_value_is_parsed_once),
        cmocka_unit_test(test_what_says_nothing_is_no_rate),
        cmocka_unit_test(test_twenty_values_stay_known),
        cmocka_unit_test(test_more_values_than_entries_stay_right),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
