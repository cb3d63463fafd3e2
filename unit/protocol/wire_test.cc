// The messages between the store and the scripts: the position of every field, and truncated or impossible
// replies.
#include "protocol/wire.h"

#include <string>
#include <vector>

#include "client.h"
#include "packed.h"
#include "test.h"

namespace rate_limit {
namespace {

std::string encoded(const Policy& policy, const StateLayout& layout) {
    char record[kLongestPolicy];
    return {record, encode_policy(policy, layout, record)};
}

void test_a_plain_policy_is_55_bytes(void**) {
    const Policy policy = policy_of(Algorithm::kSlidingWindow, "10r/m");
    const std::string expected = Packed()
                                     .add(4, 1)
                                     .add(0, 1)
                                     .add(1, 1)
                                     .add(1, 1)
                                     .add(0, 4)
                                     .add(0, 7)
                                     .add(kNoDelay, 7)
                                     .add(0, 8)
                                     .add(10, 7)
                                     .add(10, 7)
                                     .add(60, 4)
                                     .add(10, 7)
                                     .text();
    assert_true(encoded(policy, layout_of(policy)) == expected);
    assert_int_equal(expected.size(), 55);
}

void test_every_field_of_a_policy_is_in_its_place(void**) {
    Policy policy = policy_of(Algorithm::kLeakyBucket, "9007199254740991r/366d,7r/h");
    policy.align_first = true;
    policy.count_all = true;
    policy.burst = 0x0c112233445565;
    policy.ceiling = 0x15566778899aab;
    policy.delay = 0x099aabbccddeef;
    policy.min_interval = 0x0102030405060708;
    const StateLayout layout = layout_of(policy, 5, 0);
    assert_true(layout.varied);
    const std::string expected = Packed()
                                     .add(1, 1)
                                     .add(15, 1)
                                     .add(2, 1)
                                     .add(5, 1)
                                     .add(0, 4)
                                     .add(0x15566778899aab, 7)
                                     .add(0x099aabbccddeef, 7)
                                     .add(0x0102030405060708, 8)
                                     .add(0x0c112233445566, 7)
                                     .add(kMaxCount, 7)
                                     .add(366 * 86400, 4)
                                     .add(0x0c112233445566, 7)
                                     .add(0x0c112233445566, 7)
                                     .add(7, 7)
                                     .add(3600, 4)
                                     .add(0x0c112233445566, 7)
                                     .text();
    assert_true(encoded(policy, layout) == expected);
}

void test_each_flag_is_a_bit_of_its_own(void**) {
    Policy policy = policy_of(Algorithm::kFixedWindow, "10r/m");
    assert_int_equal(encoded(policy, layout_of(policy))[1], 0);
    policy.align_first = true;
    assert_int_equal(encoded(policy, layout_of(policy))[1], 1);
    policy.align_first = false;
    policy.count_all = true;
    assert_int_equal(encoded(policy, layout_of(policy))[1], 2);
    policy.count_all = false;
    assert_int_equal(encoded(policy, layout_of(policy, 1, 0))[1], 4);
}

void test_the_most_that_a_client_may_have_used_includes_its_debt(void**) {
    Policy policy = policy_of(Algorithm::kFixedWindow, "10r/m");
    const auto most = [&] { return encoded(policy, layout_of(policy)).substr(48, 7); };
    assert_true(most() == Packed().add(10, 7).text());
    policy.overdraft = 7;
    assert_true(most() == Packed().add(17, 7).text());
    policy.overdraft = kOneMore;
    assert_true(most() == Packed().add(20, 7).text());
    policy.overdraft = 0;
    policy.debt = true;
    assert_true(most() == Packed().add(20, 7).text());
}

void test_the_size_is_that_of_buckets_or_of_a_log(void**) {
    Policy buckets = policy_of(Algorithm::kSlidingBuckets, "10r/m");
    buckets.buckets = 120;
    assert_true(encoded(buckets, layout_of(buckets)).substr(4, 4) == Packed().add(120, 4).text());
    const Policy log = policy_of(Algorithm::kSlidingLog, "300r/m,2r/s");
    const StateLayout layout = layout_of(log);
    assert_true(encoded(log, layout).substr(4, 4) == Packed().add(layout.log_entries, 4).text());
    assert_true(layout.log_entries >= 300);
    assert_int_equal(encoded(log, layout)[3], 1);
    for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kGcra,
                                      Algorithm::kFixedWindow, Algorithm::kSlidingWindow}) {
        const Policy policy = policy_of(algorithm, "10r/m");
        assert_true(encoded(policy, layout_of(policy)).substr(4, 4) == Packed().add(0, 4).text());
    }
}

void test_every_algorithm_has_its_number(void**) {
    for (unsigned i = 0; i < kAlgorithms; i++) {
        const Policy policy = policy_of(kEveryAlgorithm[i], "10r/m");
        assert_int_equal(encoded(policy, layout_of(policy))[0], i);
        assert_true(encoded(policy, layout_of(policy)).substr(30, 7) == Packed().add(10, 7).text());
    }
}

void test_the_longest_policy_fits_its_room(void**) {
    const Policy policy = policy_of(Algorithm::kFixedWindow, "1r/s,2r/m,3r/h,4r/d,5r/w,6r/2w,7r/30d,8r/366d");
    assert_int_equal(encoded(policy, layout_of(policy)).size(), kLongestPolicy);
}

void test_groups_are_written_little_endian(void**) {
    char record[kGroupSize + 2 * kLimitSize];
    char* at = put_group(record, 2, kDecide, false);
    at = put_limit(put_limit(at, 0x80, 0x01020304, false), 3, ~std::uint32_t{0}, false);
    assert_ptr_equal(at, record + sizeof record);
    const std::string text =
        Packed().add(2, 1).add(0x80, 1).add(0x01020304, 4).add(3, 1).add(0xffffffff, 4).text();
    assert_true(std::string_view(record, sizeof record) == text);
    assert_int_equal(group_size(2, kDecide, false), sizeof record);
    assert_int_equal(group_size(2, kOverdraw, false), sizeof record);
}

void test_a_group_with_a_large_cost_has_large_records(void**) {
    assert_false(is_large(~std::uint32_t{0}));
    assert_true(is_large(std::uint64_t{1} << 32) && is_large(kMaxCost));
    char record[kGroupSize + 2 * kLargeLimitSize];
    char* at = put_group(record, 2, kOverdraw, true);
    at = put_limit(put_limit(at, 0x80, kMaxCost, true), 3, 1, true);
    assert_ptr_equal(at, record + sizeof record);
    const std::string text =
        Packed().add(2 + 32 + 64, 1).add(0x80, 1).add(kMaxCost, 7).add(3, 1).add(1, 7).text();
    assert_true(std::string_view(record, sizeof record) == text);
    assert_int_equal(group_size(2, kOverdraw, true), sizeof record);
}

void test_a_group_that_undoes_a_charge_has_the_charge(void**) {
    char record[kGroupSize + kLimitSize + kChargeSize];
    char* at = put_limit(put_group(record, 1, kUndo, false), 3, 5, false);
    at = put_charge(at, {kMaxCost, 1'700'000'000'123'456});
    assert_ptr_equal(at, record + sizeof record);
    assert_int_equal(group_size(1, kUndo, false), sizeof record);
    const std::string text =
        Packed().add(1 + 128, 1).add(3, 1).add(5, 4).add(kMaxCost, 7).add(1'700'000'000'123'456, 8).text();
    assert_true(std::string_view(record, sizeof record) == text);
    put_group(record, 1, kUndoRequest, false);
    assert_int_equal(static_cast<unsigned char>(record[0]), 1 + 192);
}

void test_the_time_comes_first(void**) {
    const std::string text = Packed().add(1'700'000'000'123'456, 8).add(7, 1).text();
    std::string_view reply = text;
    Micros time = 0;
    assert_true(decode_time(&reply, &time));
    assert_int_equal(time, 1'700'000'000'123'456);
    assert_int_equal(reply.size(), 1);
    for (std::size_t size = 0; size < 8; size++) {
        reply = std::string_view(text).substr(0, size);
        assert_false(decode_time(&reply, &time));
    }
}

// A decision record, with the last two fields only if the flag kDecisionMore is set.
std::string record(unsigned bits, std::uint64_t remaining, std::uint64_t reset, std::uint64_t wait = 0,
                   std::uint64_t excess = 0) {
    Packed packed;
    packed.add(bits, 1).add(remaining, 4).add(reset, 7);
    if ((bits & 16) != 0) {
        packed.add(wait, 7).add(excess, 8);
    }
    return packed.text();
}

// A policy that may delay requests.
Policy delaying(const char* rates) {
    Policy policy = policy_of(Algorithm::kLeakyBucket, rates);
    policy.delay = 0;
    return policy;
}

const Policy kTwoRates = delaying("10r/m,100r/h");

Decision decoded(const std::string& text, const Policy& policy = kTwoRates) {
    std::string_view reply = text;
    Decision decision;
    assert_true(decode_decision(&reply, policy, &decision));
    assert_true(reply.empty());
    return decision;
}

void test_an_admission_is_twelve_bytes(void**) {
    const std::string text = record(8, 4'000'000'000, (std::uint64_t{1} << 51) + 5);
    assert_int_equal(text.size(), 12);
    const Decision decision = decoded(text);
    assert_true(decision.allowed);
    assert_int_equal(decision.rate, 0);
    assert_int_equal(decision.limit, 10);
    assert_int_equal(decision.remaining, 4'000'000'000);
    assert_int_equal(decision.reset_after, (Micros{1} << 51) + 5);
    assert_int_equal(decision.retry_after, 0);
    assert_int_equal(decision.delay, 0);
    assert_int_equal(decision.excess_milli, 0);
}

void test_the_high_bits_of_remaining_come_last(void**) {
    const std::uint64_t low = kMaxCount & 0xffffffff;
    const std::string high = Packed().add(kMaxCount >> 32, 4).text();
    assert_true(decoded(record(8 + 64, low, 1) + high).remaining == kMaxCount);
    const Decision rejected = decoded(record(16 + 64, low, 1, 2, 3) + high);
    assert_true(rejected.remaining == kMaxCount && rejected.retry_after == 2 && rejected.excess_milli == 3);
    std::string_view reply = std::string_view(high).substr(0, 3);
    const std::string cut = record(8 + 64, low, 1) + std::string(reply);
    Decision decision;
    reply = cut;
    assert_false(decode_decision(&reply, kTwoRates, &decision));
    reply = cut;
    assert_false(skip_decision(&reply));
}

void test_a_delayed_admission_has_its_delay_and_excess(void**) {
    const Decision decision = decoded(record(24, 3, 60 * kSecond, 1'500'000, 2500));
    assert_true(decision.allowed);
    assert_int_equal(decision.delay, 1'500'000);
    assert_int_equal(decision.excess_milli, 2500);
    assert_int_equal(decision.retry_after, 0);
}

void test_a_rejection_has_its_wait_and_excess(void**) {
    const Decision decision = decoded(record(17, 0, 3600 * kSecond, kForever, ~std::uint64_t{0}));
    assert_false(decision.allowed);
    assert_int_equal(decision.rate, 1);
    assert_int_equal(decision.limit, 10);
    assert_int_equal(decision.retry_after, kForever);
    assert_true(decision.excess_milli == ~std::uint64_t{0});
    assert_int_equal(decision.delay, 0);
}

// Replies with numbers that the script never sends are rejected.
void test_a_wait_beyond_all_waits_is_refused(void**) {
    const std::uint64_t beyond = static_cast<std::uint64_t>(kForever + kClockSlack) + 1;
    for (const std::string& text : {record(8, 1, beyond), record(16, 1, 1, beyond, 1)}) {
        std::string_view reply = text;
        Decision decision;
        assert_false(decode_decision(&reply, kTwoRates, &decision));
    }
    const std::string text = Packed().add(static_cast<std::uint64_t>(kForever), 8).text();
    std::string_view reply = text;
    Micros time = 0;
    assert_false(decode_time(&reply, &time));
}

void test_a_delay_is_believed_only_where_one_is_due(void**) {
    const Micros longest = window_of(kTwoRates, kTwoRates.rates.rates[1]);
    Policy never = kTwoRates;
    never.delay = kNoDelay;
    const struct {
        Policy policy;
        Micros delay;
        bool believed;
    } cases[] = {{kTwoRates, longest, true},
                 {kTwoRates, longest + 1, false},
                 {never, 1, false},
                 {policy_of(Algorithm::kSlidingLog, "10r/m"), 1, false}};
    for (const auto& each : cases) {
        const std::string text = record(24, 1, 1, static_cast<std::uint64_t>(each.delay), 1);
        std::string_view reply = text;
        Decision decision;
        assert_int_equal(decode_decision(&reply, each.policy, &decision), each.believed);
    }
}

void test_never_is_never(void**) {
    const Decision decision = decoded(record(48, 10, 0, 0, 1000));
    assert_false(decision.allowed);
    assert_int_equal(decision.retry_after, kNever);
    assert_int_equal(decision.excess_milli, 1000);
}

void test_the_limit_is_the_policys_own(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        Policy policy = policy_of(algorithm, "10r/m,100r/h");
        policy.capacity = algorithm == Algorithm::kTokenBucket ? 77 : 0;
        for (unsigned rate = 0; rate < 2; rate++) {
            assert_int_equal(decoded(record(8 + rate, 1, 1), policy).limit,
                             capacity_of(policy, policy.rates.rates[rate]));
        }
    }
}

void test_a_rate_that_the_policy_does_not_have_is_refused(void**) {
    const Policy eight = delaying("1r/s,2r/m,3r/h,4r/d,5r/w,6r/2w,7r/30d,8r/366d");
    for (unsigned rate = 0; rate < 8; rate++) {
        for (const unsigned bits : {8U, 24U, 16U, 48U}) {
            const std::string text = record(bits + rate, 1, 1, 1, 1);
            std::string_view reply = text;
            Decision decision;
            assert_int_equal(decode_decision(&reply, kTwoRates, &decision), rate < 2);
            reply = text;
            assert_true(decode_decision(&reply, eight, &decision));
            assert_int_equal(decision.rate, rate);
        }
    }
}

void test_a_reply_cut_at_any_length_is_refused(void**) {
    std::string text = Packed().add(1, 8).text();
    const unsigned kinds[] = {8, 24, 17, 48, 9};
    for (const unsigned bits : kinds) {
        text += record(bits, 1, 2, 3, 4);
    }
    for (std::size_t size = 0; size <= text.size(); size++) {
        for (const bool skips : {false, true}) {
            // Its own allocation, so that a sanitizer reports reads beyond its end.
            const std::vector<char> copy(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
            std::string_view reply(copy.data(), copy.size());
            Micros time = 0;
            bool whole = decode_time(&reply, &time);
            for (unsigned i = 0; i < 5 && whole; i++) {
                Decision decision;
                whole = skips ? skip_decision(&reply) : decode_decision(&reply, kTwoRates, &decision);
            }
            assert_int_equal(whole, size == text.size());
        }
    }
}

void test_skipping_takes_exactly_what_decoding_takes(void**) {
    for (unsigned bits = 0; bits < 64; bits++) {
        const std::string text = record(bits, 1, 2, 3, 4) + "rest";
        std::string_view skipped = text;
        std::string_view taken = text;
        Decision decision;
        assert_true(skip_decision(&skipped));
        if (decode_decision(&taken, kTwoRates, &decision)) {
            assert_true(skipped == taken && skipped == "rest");
        }
    }
}

void test_an_entry_is_a_policy_and_a_cost(void**) {
    redis::Buffer entries;
    append_entry(254, kMaxCost, &entries);
    append_entry(0, 0, &entries);
    assert_true(entries.view() == Packed().add(254, 1).add(kMaxCost, 7).add(0, 8).text());
}

void test_a_client_has_its_overshoot_and_its_value(void**) {
    const std::string value(65535, 'v');
    const std::string text = Packed()
                                 .add(kMaxCount, 7)
                                 .add(value.size(), 2)
                                 .add(value)
                                 .add(0, 7)
                                 .add(0, 2)
                                 .add(7, 7)
                                 .add(3, 2)
                                 .add("abcrest")
                                 .text();
    std::string_view reply = text;
    std::uint64_t overshoot = 0;
    std::string_view got;
    assert_true(decode_entry(&reply, &overshoot, &got));
    assert_int_equal(overshoot, kMaxCount);
    assert_true(got == value);
    assert_true(decode_entry(&reply, &overshoot, &got));
    assert_int_equal(overshoot, 0);
    assert_true(got.empty());
    assert_true(decode_entry(&reply, &overshoot, &got));
    assert_int_equal(overshoot, 7);
    assert_true(got == "abc" && reply == "rest");
}

void test_a_client_that_breaks_off_is_refused(void**) {
    const std::string text = Packed().add(7, 7).add(3, 2).add("abc").text();
    for (std::size_t size = 0; size <= text.size(); size++) {
        const std::vector<char> copy(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
        std::string_view reply(copy.data(), copy.size());
        std::uint64_t overshoot = 0;
        std::string_view value;
        assert_int_equal(decode_entry(&reply, &overshoot, &value), size == text.size());
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_plain_policy_is_55_bytes),
        cmocka_unit_test(test_the_most_that_a_client_may_have_used_includes_its_debt),
        cmocka_unit_test(test_a_group_that_undoes_a_charge_has_the_charge),
        cmocka_unit_test(test_every_field_of_a_policy_is_in_its_place),
        cmocka_unit_test(test_each_flag_is_a_bit_of_its_own),
        cmocka_unit_test(test_the_size_is_that_of_buckets_or_of_a_log),
        cmocka_unit_test(test_every_algorithm_has_its_number),
        cmocka_unit_test(test_the_longest_policy_fits_its_room),
        cmocka_unit_test(test_groups_are_written_little_endian),
        cmocka_unit_test(test_a_group_with_a_large_cost_has_large_records),
        cmocka_unit_test(test_the_time_comes_first),
        cmocka_unit_test(test_an_admission_is_twelve_bytes),
        cmocka_unit_test(test_the_high_bits_of_remaining_come_last),
        cmocka_unit_test(test_a_delayed_admission_has_its_delay_and_excess),
        cmocka_unit_test(test_a_rejection_has_its_wait_and_excess),
        cmocka_unit_test(test_never_is_never),
        cmocka_unit_test(test_a_wait_beyond_all_waits_is_refused),
        cmocka_unit_test(test_a_delay_is_believed_only_where_one_is_due),
        cmocka_unit_test(test_the_limit_is_the_policys_own),
        cmocka_unit_test(test_a_rate_that_the_policy_does_not_have_is_refused),
        cmocka_unit_test(test_a_reply_cut_at_any_length_is_refused),
        cmocka_unit_test(test_skipping_takes_exactly_what_decoding_takes),
        cmocka_unit_test(test_an_entry_is_a_policy_and_a_cost),
        cmocka_unit_test(test_a_client_has_its_overshoot_and_its_value),
        cmocka_unit_test(test_a_client_that_breaks_off_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
