// The slots of keys are those that Redis computes.
#include "redis/hash_slot.h"

#include <random>

#include "real_server.h"

namespace rate_limit::redis {
namespace {

// CRC-16 by definition: a division, bit by bit.
unsigned divided(std::string_view text) {
    unsigned rest = 0;
    for (const char c : text) {
        for (int bit = 7; bit >= 0; bit--) {
            const unsigned next = static_cast<unsigned char>(c) >> bit & 1U;
            const unsigned carry = rest >> 15;
            rest = ((rest << 1) & 0xffff) ^ ((carry ^ next) != 0 ? 0x1021U : 0U);
        }
    }
    return rest;
}

void test_the_check_value_of_the_specification(void**) {
    assert_int_equal(divided("123456789"), 0x31C3);
    assert_int_equal(hash_slot_of("123456789"), 0x31C3 % kHashSlots);
}

void test_known_slots(void**) {
    assert_int_equal(hash_slot_of(""), 0);
    assert_int_equal(hash_slot_of("foo"), 12182);
    assert_int_equal(hash_slot_of("bar"), 5061);
    assert_int_equal(hash_slot_of("hello"), 866);
}

void test_every_byte_counts(void**) {
    for (unsigned byte = 0; byte < 256; byte++) {
        const char c = static_cast<char>(byte);
        for (const std::string& text :
             {std::string(1, c), "a" + std::string(1, c), std::string(1, c) + "a"}) {
            assert_int_equal(hash_slot_of(text), divided(text) % kHashSlots);
        }
    }
}

void test_the_text_in_the_first_braces_decides(void**) {
    const struct {
        const char* key;
        const char* hashed;
    } cases[] = {
        {"{user1000}.following", "user1000"},
        {"{user1000}.followers", "user1000"},
        {"foo{bar}{zap}", "bar"},
        {"foo{{bar}}zap", "{bar"},
        {"{a}", "a"},
        {"x{a}b}", "a"},
        {"{ }", " "},
        {"}{a}", "a"},
        {"a}b{c}d", "c"},
    };
    for (const auto& each : cases) {
        assert_int_equal(hash_slot_of(each.key), divided(each.hashed) % kHashSlots);
    }
}

void test_with_empty_first_braces_the_whole_key_decides(void**) {
    for (const char* key :
         {"foo{}{bar}", "{}", "{}a", "a{}", "foo{bar", "foo}bar", "{", "}", "}{", "a}{b", "{{"}) {
        assert_int_equal(hash_slot_of(key), divided(key) % kHashSlots);
    }
}

void test_a_null_byte_does_not_end_a_key(void**) {
    const std::string inside("{a\0b}c", 6);
    assert_int_equal(hash_slot_of(inside), divided(std::string_view("a\0b", 3)) % kHashSlots);
    const std::string outside("a\0b", 3);
    assert_int_equal(hash_slot_of(outside), divided(outside) % kHashSlots);
    assert_int_not_equal(hash_slot_of(outside), hash_slot_of("a"));
}

void test_all_zones_of_a_client_share_a_slot(void**) {
    const HashSlot slot = hash_slot_of("alice");
    for (const char* key :
         {"rate_limit:api:sliding_window:{alice}", "rate_limit:login:gcra:{alice}", "p:{alice}"}) {
        assert_int_equal(hash_slot_of(key), slot);
    }
}

// Keys of few different bytes, so that braces occur in every position.
void test_a_real_server_computes_the_same_slots(void**) {
    const RealServer server({"--port", std::to_string(free_port()), "--cluster-enabled", "yes",
                             "--cluster-port", std::to_string(free_port())});
    std::mt19937 random(7);
    for (unsigned i = 0; i < 5000; i++) {
        std::string key;
        for (unsigned size = random() % 12 + (i % 50 == 0 ? 300 : 0); size > 0; size--) {
            const unsigned kind = random() % 4;
            key += kind == 0 ? '{' : kind == 1 ? '}' : static_cast<char>(random() % 256);
        }
        const std::string slot = server.command({"CLUSTER", "KEYSLOT", key});
        if (slot != std::to_string(hash_slot_of(key))) {
            fail_msg("number %u: %s, not %u", i, slot.c_str(), hash_slot_of(key));
        }
    }
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_check_value_of_the_specification),
        cmocka_unit_test(test_known_slots),
        cmocka_unit_test(test_every_byte_counts),
        cmocka_unit_test(test_the_text_in_the_first_braces_decides),
        cmocka_unit_test(test_with_empty_first_braces_the_whole_key_decides),
        cmocka_unit_test(test_a_null_byte_does_not_end_a_key),
        cmocka_unit_test(test_all_zones_of_a_client_share_a_slot),
        cmocka_unit_test(test_a_real_server_computes_the_same_slots),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
