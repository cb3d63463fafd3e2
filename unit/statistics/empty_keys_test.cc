// The first requests of a zone whose key is empty for all of them.
#include "statistics/empty_keys.h"

#include "test.h"

namespace rate_limit {
namespace {

// Returns which of some requests with an empty key is the last one of the first requests; 0 if none is.
unsigned last_of(EmptyKeys* keys, unsigned requests) {
    unsigned last = 0;
    for (unsigned i = 1; i <= requests; i++) {
        if (keys->count()) {
            assert_int_equal(last, 0);
            last = i;
        }
    }
    return last;
}

void test_the_thousandth_empty_key_is_reported_once(void**) {
    EmptyKeys keys;
    assert_int_equal(last_of(&keys, 999), 0);
    assert_false(keys.ended());
    assert_int_equal(last_of(&keys, 2000), 1);
    assert_true(keys.ended());
}

void test_a_key_ends_the_count(void**) {
    EmptyKeys keys;
    assert_int_equal(last_of(&keys, 999), 0);
    keys.end();
    assert_true(keys.ended());
    assert_int_equal(last_of(&keys, 2000), 0);
}

void test_a_restart_counts_again(void**) {
    EmptyKeys keys;
    keys.end();
    keys.restart();
    assert_false(keys.ended());
    assert_int_equal(last_of(&keys, 2000), 1000);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_thousandth_empty_key_is_reported_once),
        cmocka_unit_test(test_a_key_ends_the_count),
        cmocka_unit_test(test_a_restart_counts_again),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
