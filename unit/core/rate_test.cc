// How rates and numbers are read.
#include <cstring>
#include <string>
#include <vector>

#include "client.h"
#include "test.h"

namespace rate_limit {
namespace {

// A copy without a byte beyond its end, so that a reader that goes further is caught.
class Exact {
  public:
    explicit Exact(std::string_view text) : bytes_(text.begin(), text.end()) { bytes_.shrink_to_fit(); }
    std::string_view view() const { return {bytes_.data(), bytes_.size()}; }

  private:
    std::vector<char> bytes_;
};

void test_every_documented_form_is_read(void**) {
    const struct {
        const char* text;
        std::uint64_t count;
        Micros seconds;
    } rows[] = {
        {"10r/s", 10, 1},
        {"100r/m", 100, 60},
        {"1000r/h", 1000, 3600},
        {"5r/d", 5, 86400},
        {"20r/w", 20, 604800},
        {"100r/30s", 100, 30},
        {"1r/1s", 1, 1},
        {"3r/7s", 3, 7},
        {"7r/15m", 7, 900},
        {"1r/2d", 1, 172800},
        {"1000000000r/s", 1000000000, 1},
        {"9007199254740991r/s", 9007199254740991, 1},
        {"1r/366d", 1, 366 * 86400},
        {"1r/52w", 1, 364 * 86400},
        {"1r/8784h", 1, 366 * 86400},
        {"1r/527040m", 1, 366 * 86400},
        {"1r/31622400s", 1, 366 * 86400},
    };
    for (const auto& row : rows) {
        RateList list;
        memset(&list, 0xff, sizeof list);
        const char* error = parse_rates(Exact(row.text).view(), &list);
        if (error != nullptr) {
            fail_msg("%s: %s", row.text, error);
        }
        assert_int_equal(list.size, 1);
        assert_int_equal(list.rates[0].count, row.count);
        assert_int_equal(list.rates[0].period, row.seconds * kSecond);
    }
}

void test_several_rates_keep_their_order(void**) {
    RateList list;
    assert_null(parse_rates("100r/m,1000r/h,5r/s", &list));
    assert_int_equal(list.size, 3);
    assert_int_equal(list.rates[0].count, 100);
    assert_int_equal(list.rates[0].period, kMinute);
    assert_int_equal(list.rates[1].count, 1000);
    assert_int_equal(list.rates[1].period, kHour);
    assert_int_equal(list.rates[2].count, 5);
    assert_int_equal(list.rates[2].period, kSecond);
}

void test_off_is_no_rate_at_all(void**) {
    RateList list;
    memset(&list, 0xff, sizeof list);
    assert_null(parse_rates(Exact("off").view(), &list));
    assert_int_equal(list.size, 0);
}

void test_eight_rates_are_read_and_nine_are_not(void**) {
    std::string text = "1r/s";
    for (std::uint32_t i = 2; i <= kMaxRates; ++i) {
        text += "," + std::to_string(i) + "r/s";
    }
    RateList list;
    assert_null(parse_rates(text, &list));
    assert_int_equal(list.size, kMaxRates);
    assert_int_equal(list.rates[7].count, 8);
    text += ",9r/s";
    assert_non_null(parse_rates(Exact(text).view(), &list));
}

void test_anything_else_is_an_error_with_a_sentence(void**) {
    const std::string_view rows[] = {
        "",
        " ",
        ",",
        "r",
        "/",
        "r/s",
        "abc",
        "10",
        "10r",
        "10r/",
        "10/s",
        "10s",
        "10rs",
        "10r/ms",
        "10r/us",
        "10r/y",
        "10r/x",
        "10r/S",
        "10R/s",
        "10r//s",
        "10rr/s",
        "10r/ss",
        "10r/s/s",
        "10r/1",
        "10r/30",
        "10r/1s1",
        "10r/1m30s",
        "10r/s ",
        " 10r/s",
        "10 r/s",
        "10r /s",
        "10r/ s",
        "10r/1 s",
        "+10r/s",
        "-10r/s",
        "10r/+1s",
        "10r/-1s",
        "1.5r/s",
        "1e3r/s",
        "0x10r/s",
        "10r/1.5s",
        "0r/s",
        "00r/s",
        "10r/0s",
        "10r/00d",
        "9007199254740992r/s",
        "90071992547409910r/s",
        "18446744073709551617r/s",
        "99999999999999999999999999999999r/s",
        "1r/367d",
        "1r/53w",
        "1r/31622401s",
        "1r/4294967297s",
        "1r/18446744073709551617s",
        "1r/30501489541w",
        "1r/s,",
        ",1r/s",
        "1r/s,,1r/m",
        "1r/s, 1r/m",
        "1r/s 1r/m",
        "1r/s;1r/m",
        "1r/s,abc",
        "off,1r/s",
        "1r/s,off",
        "off,off",
        "off,",
        "off ",
        " off",
        "OFF",
        "Off",
        "of",
        "offf",
        "$plan",
        std::string_view("10r/s\0", 6),
        std::string_view("1\0r/s", 5),
        std::string_view("\0", 1),
        "10r/s\n",
        "\xd9\xa1r/s",
        "1r/s,1r/s,1r/s,1r/s,1r/s,1r/s,1r/s,1r/s,",
    };
    for (const std::string_view row : rows) {
        RateList list;
        const char* error = parse_rates(Exact(row).view(), &list);
        if (error == nullptr) {
            fail_msg("\"%.*s\" was read", static_cast<int>(row.size()), row.data());
        }
        assert_true(strlen(error) > 10);
        assert_true(error[strlen(error) - 1] != '.');
    }
}

// Also nothing that a client could send through a variable crashes it.
void test_long_input_is_an_error_and_quick(void**) {
    RateList list;
    assert_non_null(parse_rates(std::string(1'000'000, '9'), &list));
    assert_non_null(parse_rates(std::string(1'000'000, ','), &list));
    assert_non_null(parse_rates("1r/" + std::string(1'000'000, '1') + "s", &list));
}

void test_numbers_up_to_the_most_are_read(void**) {
    const struct {
        const char* text;
        std::uint64_t most;
        std::uint64_t value;
    } rows[] = {
        {"0", 0, 0},
        {"0", 10, 0},
        {"10", 10, 10},
        {"9", 10, 9},
        {"12", 1000, 12},
        {"9007199254740991", kMaxCount, kMaxCount},
        {"18446744073709551615", ~std::uint64_t{0}, ~std::uint64_t{0}},
        {"18446744073709551609", ~std::uint64_t{0}, ~std::uint64_t{0} - 6},
    };
    for (const auto& row : rows) {
        std::uint64_t value = 77;
        if (!parse_number(Exact(row.text).view(), row.most, &value)) {
            fail_msg("%s was not read", row.text);
        }
        assert_int_equal(value, row.value);
    }
}

void test_other_numbers_are_not_read(void**) {
    const struct {
        std::string_view text;
        std::uint64_t most;
    } rows[] = {
        {"", 10},
        {"1", 0},
        {"11", 10},
        {"100", 99},
        {"5", 4},
        {"-1", 10},
        {"+1", 10},
        {"-0", 10},
        {" 1", 10},
        {"1 ", 10},
        {"1.0", 10},
        {"1e0", 10},
        {"0x1", 10},
        {"a", 100},
        {"1a", 100},
        {":", 100},
        {"/", 100},
        {std::string_view("1\0", 2), 10},
        {"18446744073709551616", ~std::uint64_t{0}},
        {"18446744073709551620", ~std::uint64_t{0}},
        {"184467440737095516150", ~std::uint64_t{0}},
        {"340282366920938463463374607431768211456", ~std::uint64_t{0}},
    };
    for (const auto& row : rows) {
        std::uint64_t value = 77;
        if (parse_number(Exact(row.text).view(), row.most, &value)) {
            fail_msg("\"%.*s\" was read as %lu", static_cast<int>(row.text.size()), row.text.data(),
                     static_cast<unsigned long>(value));
        }
    }
}

void test_a_view_is_read_to_its_end_and_no_further(void**) {
    const std::string_view text = "123456";
    std::uint64_t value = 0;
    assert_true(parse_number(text.substr(1, 3), 1000, &value));
    assert_int_equal(value, 234);
    RateList list;
    assert_null(parse_rates(std::string_view("x10r/m,5r/s").substr(1, 5), &list));
    assert_int_equal(list.size, 1);
    assert_int_equal(list.rates[0].period, kMinute);
}

void test_algorithms_are_known_by_the_names_they_print(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Algorithm read = Algorithm::kGcra;
        assert_true(parse_algorithm(algorithm_name(algorithm), &read));
        assert_int_equal(static_cast<int>(read), static_cast<int>(algorithm));
    }
    assert_string_equal(algorithm_name(Algorithm::kTokenBucket), "token_bucket");
    assert_string_equal(algorithm_name(Algorithm::kLeakyBucket), "leaky_bucket");
    assert_string_equal(algorithm_name(Algorithm::kGcra), "gcra");
    assert_string_equal(algorithm_name(Algorithm::kFixedWindow), "fixed_window");
    assert_string_equal(algorithm_name(Algorithm::kSlidingWindow), "sliding_window");
    assert_string_equal(algorithm_name(Algorithm::kSlidingBuckets), "sliding_buckets");
    assert_string_equal(algorithm_name(Algorithm::kSlidingLog), "sliding_log");
    Algorithm read = Algorithm::kGcra;
    for (const char* name : {"", "GCRA", "gcra ", "sliding", "token_bucket,gcra", "token-bucket"}) {
        assert_false(parse_algorithm(name, &read));
    }
}

void test_messages_list_the_algorithms_that_take_an_option(void**) {
    assert_string_equal(names_of_algorithms_taking(kTakesBurst).text, "leaky_bucket or gcra");
    assert_string_equal(names_of_algorithms_taking(kTakesCapacity).text, "token_bucket");
    assert_string_equal(names_of_algorithms_taking(kTakesDelay).text, "leaky_bucket");
    assert_string_equal(names_of_algorithms_taking(kTakesBuckets).text, "sliding_buckets");
    assert_string_equal(names_of_algorithms_taking(kTakesAlign).text, "fixed_window");
    assert_string_equal(
        all_algorithm_names().text,
        "token_bucket, leaky_bucket, gcra, fixed_window, sliding_window, sliding_buckets or sliding_log");
}

// The window is how long the quota lasts at the rate: q and w of a RateLimit-Policy.
void test_the_window_of_a_policy_is_how_long_its_quota_lasts(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = policy_of(algorithm, "100r/m");
        assert_int_equal(window_of(policy, policy.rates.rates[0]), kMinute);
    }
    Policy policy = policy_of(Algorithm::kGcra, "30r/m");
    policy.burst = 15;
    assert_int_equal(capacity_of(policy, policy.rates.rates[0]), 16);
    assert_int_equal(window_of(policy, policy.rates.rates[0]), 32 * kSecond);
    policy = policy_of(Algorithm::kTokenBucket, "3r/s");
    policy.capacity = 10;
    assert_int_equal(window_of(policy, policy.rates.rates[0]), 3'333'334);
    policy = policy_of(Algorithm::kTokenBucket, "1r/366d");
    policy.capacity = kMaxCount;
    assert_int_equal(window_of(policy, policy.rates.rates[0]), kForever);
}

void test_rates_are_printed_as_they_are_read(void**) {
    constexpr struct {
        const char* text;
        const char* printed;
    } kRows[] = {
        {"10r/s", "10r/s"},
        {"off", "off"},
        {"100r/60s", "100r/m"},
        {"100r/30s", "100r/30s"},
        {"7r/90m", "7r/90m"},
        {"7r/14d,1r/61s", "7r/2w,1r/61s"},
        {"9007199254740991r/366d", "9007199254740991r/366d"},
        {"9007199254740991r/31622399s,9007199254740991r/31622399s,9007199254740991r/"
         "31622399s,9007199254740991r/31622399s,"
         "9007199254740991r/31622399s,9007199254740991r/31622399s,9007199254740991r/"
         "31622399s,9007199254740991r/31622399s",
         nullptr},
    };
    for (const auto& row : kRows) {
        RateList list;
        assert_null(parse_rates(row.text, &list));
        char text[kLongestRates];
        const std::string printed(text, print_rates(list, text));
        assert_string_equal(printed.c_str(), row.printed != nullptr ? row.printed : row.text);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_every_documented_form_is_read),
        cmocka_unit_test(test_several_rates_keep_their_order),
        cmocka_unit_test(test_off_is_no_rate_at_all),
        cmocka_unit_test(test_eight_rates_are_read_and_nine_are_not),
        cmocka_unit_test(test_anything_else_is_an_error_with_a_sentence),
        cmocka_unit_test(test_long_input_is_an_error_and_quick),
        cmocka_unit_test(test_numbers_up_to_the_most_are_read),
        cmocka_unit_test(test_other_numbers_are_not_read),
        cmocka_unit_test(test_a_view_is_read_to_its_end_and_no_further),
        cmocka_unit_test(test_rates_are_printed_as_they_are_read),
        cmocka_unit_test(test_algorithms_are_known_by_the_names_they_print),
        cmocka_unit_test(test_messages_list_the_algorithms_that_take_an_option),
        cmocka_unit_test(test_the_window_of_a_policy_is_how_long_its_quota_lasts),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
