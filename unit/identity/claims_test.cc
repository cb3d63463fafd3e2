// Claims: accepted JSON, paths, and the text of each type of value.
#include "identity/claims.h"

#include <rapidcheck.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "test.h"
#include "tokens.h"

namespace rate_limit::identity {
namespace {

// From memory that is exactly as long as the text.
Json parsed(std::string_view text) {
    const std::unique_ptr<unsigned char[]> exact(new unsigned char[text.size()]);
    std::copy(text.begin(), text.end(), exact.get());
    return parse_object(exact.get(), text.size());
}

std::string text_of(const Json& claims, std::string_view path) {
    char number[kLongestNumber];
    return std::string(claim_text(claims, path, number));
}

void assert_claim(std::string_view claims, std::string_view path, std::string_view expected) {
    const Json object = parsed(claims);
    if (!object) {
        fail_msg("%s is refused", std::string(claims).c_str());
    }
    const std::string text = text_of(object, path);
    if (text != expected) {
        fail_msg("%s of %s is \"%s\"", std::string(path).c_str(), std::string(claims).c_str(), text.c_str());
    }
}

void assert_refused(std::string_view text) {
    if (parsed(text)) {
        fail_msg("%s is accepted", std::string(text).c_str());
    }
}

void test_an_object_is_read(void**) {
    for (const char* text :
         {"{}", " { } ", "\r\n{\t}\n", "{\"a\":1}", "{\"a\":{\"a\":{\"a\":[]}}}",
          "{\"a\":[{\"b\":1},{\"b\":2}]}", "{\"\":1}", "{\"\xc3\xa4\":\"\xf0\x9f\x98\x80\"}"}) {
        assert_true(static_cast<bool>(parsed(text)));
    }
}

void test_what_is_no_object_is_refused(void**) {
    for (const char* text : {"",
                             " ",
                             "[]",
                             "[{}]",
                             "\"a\"",
                             "1",
                             "null",
                             "true",
                             "{",
                             "}",
                             "{}}",
                             "{}{}",
                             "{} x",
                             "{\"a\"}",
                             "{\"a\":}",
                             "{\"a\":1,}",
                             "{a:1}",
                             "{'a':1}",
                             "{\"a\":01}",
                             "{\"a\":.5}",
                             "{\"a\":+1}",
                             "{\"a\":NaN}",
                             "{\"a\":Infinity}",
                             "{\"a\":\"\n\"}",
                             "{/**/}",
                             "{}//",
                             "\xef\xbb\xbf{}",
                             "{\"a\":\"b}",
                             "{\"a\":tru}",
                             "{\"a\":1 \"b\":2}"}) {
        assert_refused(text);
    }
    assert_refused(std::string_view("{}\0", 3));
    assert_refused(std::string_view("{\"a\":1\0}", 8));
    assert_refused(std::string_view("\0{}", 3));
}

void test_a_name_that_stands_twice_is_refused_at_any_depth(void**) {
    for (const char* text :
         {R"({"a":1,"a":1})", R"({"a":1,"b":2,"a":3})", R"({"a":1,"\u0061":2})", R"({"x":{"a":1,"a":2}})",
          R"({"x":[{"a":1,"a":2}]})", R"({"x":[[[{"y":{"a":null,"a":null}}]]]})", R"({"":1,"":2})",
          R"({"a":{},"a":{}})",
          R"({"\u00e4":1,")"
          "\xc3\xa4"
          R"(":2})"}) {
        assert_refused(text);
    }
    assert_true(static_cast<bool>(parsed(R"({"a":{"a":1},"A":2,"b":[{"a":1},{"a":2}]})")));
}

void test_what_is_not_utf8_is_refused(void**) {
    for (const char* text :
         {"{\"a\":\"\xff\"}", "{\"a\":\"\xc3\"}", "{\"\xe4\":1}", "{\"a\":\"\xc0\x80\"}",
          "{\"a\":\"\xed\xa0\x80\"}", "{\"a\":\"\xf4\x90\x80\x80\"}", "{\"a\":\"\xe2\x82\"}",
          "{\"a\":\"\\ud800\"}", "{\"a\":\"\\udc00\"}", "{\"a\":\"\\ud800\\u0041\"}",
          "{\"a\":\"\\ud83d\\ud83d\"}", "{\"a\":\"\\u12\"}", "{\"a\":\"\\x41\"}"}) {
        assert_refused(text);
    }
}

void test_a_string_is_text_as_it_is(void**) {
    assert_claim(R"({"sub":"alice"})", "sub", "alice");
    assert_claim(R"({"sub":""})", "sub", "");
    assert_claim(R"({"sub":"a\"b\\c\/d\n\t"})", "sub", "a\"b\\c/d\n\t");
    assert_claim(R"({"sub":"\u00e4\ud83d\ude00"})", "sub", "\xc3\xa4\xf0\x9f\x98\x80");
    assert_claim(R"({"sub":"true"})", "sub", "true");
    assert_claim(R"({"sub":" 42 "})", "sub", " 42 ");
    const std::string large(12000, 'x');
    assert_claim(R"({"sub":")" + large + "\"}", "sub", large);
}

void test_a_string_with_a_nul_is_whole_or_refused_but_never_its_beginning(void**) {
    const Json object = parsed(R"({"sub":"alice\u0000bob"})");
    if (object) {
        assert_true(text_of(object, "sub") == std::string_view("alice\0bob", 9));
    }
    const Json named = parsed(R"({"sub\u0000x":"alice"})");
    assert_true(!named || text_of(named, "sub").empty());
}

void test_a_number_is_text(void**) {
    const struct {
        const char *json, *text;
    } cases[] = {
        {"42", "42"},
        {"0", "0"},
        {"-0", "0"},
        {"-1", "-1"},
        {"1.5", "1.5"},
        {"-2.25", "-2.25"},
        {"0.1", "0.1"},
        {"9223372036854775807", "9223372036854775807"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"9007199254740993", "9007199254740993"},
    };
    for (const auto& each : cases) {
        assert_claim(std::string("{\"n\":") + each.json + "}", "n", each.text);
    }
}

void test_every_integer_is_written_whole(void**) {
    const bool kept = rc::check("integers are whole", [] {
        const auto value = *rc::gen::arbitrary<std::int64_t>();
        RC_ASSERT(text_of(parsed("{\"n\":" + std::to_string(value) + "}"), "n") == std::to_string(value));
    });
    assert_true(kept);
}

void test_every_real_reads_back_as_itself(void**) {
    const bool kept = rc::check("reals read back", [] {
        const auto value =
            *rc::gen::oneOf(rc::gen::arbitrary<double>(),
                            rc::gen::map(rc::gen::arbitrary<std::uint64_t>(), [](std::uint64_t bits) {
                                double real;
                                std::memcpy(&real, &bits, sizeof(real));
                                return real;
                            }));
        RC_PRE(value - value == 0);
        char json[64];
        std::snprintf(json, sizeof(json), "{\"n\":%.17e}", value);
        const std::string text = text_of(parsed(json), "n");
        RC_ASSERT(!text.empty() && text.size() < kLongestNumber);
        RC_ASSERT(std::strtod(text.c_str(), nullptr) == value);
    });
    assert_true(kept);
}

void test_a_number_that_no_machine_holds_is_refused_or_text_but_no_other_number(void**) {
    for (const char* json : {"9223372036854775808", "-9223372036854775809", "1e400", "-1e400",
                             "123456789012345678901234567890"}) {
        const Json object = parsed(std::string("{\"n\":") + json + "}");
        if (object) {
            const std::string text = text_of(object, "n");
            assert_true(text.empty() || std::strtod(text.c_str(), nullptr) == std::strtod(json, nullptr));
        }
    }
}

void test_a_boolean_is_text(void**) {
    assert_claim(R"({"b":true})", "b", "true");
    assert_claim(R"({"b":false})", "b", "false");
}

void test_other_values_are_empty(void**) {
    for (const char* value : {"null", "{}", "[]", "{\"a\":1}", "[\"a\"]", "[1]"}) {
        assert_claim(std::string("{\"v\":") + value + "}", "v", "");
    }
}

void test_a_claim_that_is_not_there_is_empty(void**) {
    const Json object = parsed(R"({"sub":"alice","realm":{"tenant":"acme"},"list":["a"]})");
    for (const char* path : {"su",
                             "subx",
                             "Sub",
                             "SUB",
                             "tenant",
                             "realm",
                             "realm.",
                             ".realm",
                             "realm.tenantx",
                             "realm.tenant.x",
                             "sub.alice",
                             "sub.",
                             ".sub",
                             ".",
                             "..",
                             "",
                             "list.0",
                             "realm..tenant",
                             "realm.tenant.",
                             "list.a",
                             "realm\\.tenant",
                             "realm/tenant",
                             "x.y.z"}) {
        if (!text_of(object, path).empty()) {
            fail_msg("%s is found", path);
        }
    }
    const Json none;
    assert_true(text_of(none, "sub").empty());
    assert_true(text_of(parsed("{}"), "sub").empty());
}

void test_a_dot_leads_into_an_object(void**) {
    assert_claim(R"({"realm":{"tenant":"acme"}})", "realm.tenant", "acme");
    assert_claim(R"({"a":{"b":{"c":{"d":7}}}})", "a.b.c.d", "7");
    assert_claim(R"({"a":{"b":{"c":{"d":7}}}})", "a.b.c", "");
    assert_claim(R"({"a":{"b":true},"b":false})", "a.b", "true");
}

void test_a_claim_with_dots_in_its_name_is_found_by_its_whole_name_first(void**) {
    assert_claim(R"({"https://example.com/plan":"gold"})", "https://example.com/plan", "gold");
    assert_claim(R"({"a.b":"whole","a":{"b":"part"}})", "a.b", "whole");
    assert_claim(R"({"a":{"b":"part"},"a.b":"whole"})", "a.b", "whole");
    assert_claim(R"({"a":{"b.c":"x"}})", "a.b.c", "x");
    assert_claim(R"({".":"x"})", ".", "x");
    assert_claim(R"({"a.":"x"})", "a.", "x");
}

void test_an_object_with_dots_in_its_name_is_led_into(void**) {
    assert_claim(R"({"https://example.com/plan":{"tier":"gold"}})", "https://example.com/plan.tier", "gold");
    assert_claim(R"({"a.b":{"c":"x"}})", "a.b.c", "x");
    assert_claim(R"({"a.b":{"c.d":"x"}})", "a.b.c.d", "x");
    assert_claim(R"({"a.b":"no object","a":{"b":{"c":"x"}}})", "a.b.c", "x");
}

void test_a_deep_claim_is_found_and_a_path_of_any_length_is_harmless(void**) {
    std::string claims = "\"x\"";
    std::string path;
    for (unsigned i = 0; i < 200; i++) {
        claims = "{\"a\":" + claims + "}";
        path += i == 0 ? "a" : ".a";
    }
    assert_claim(claims, path, "x");
    assert_claim(claims, path + ".a", "");
    assert_claim("{}", path, "");
    assert_claim(claims, std::string(500, '.'), "");
    assert_claim(claims, std::string(5000, 'a'), "");
}

std::string variable_of(std::string_view claims, std::string_view name) {
    char number[kLongestNumber];
    return std::string(variable_text(parsed(claims), name, number));
}

void test_a_variable_names_a_claim_whatever_its_case(void**) {
    assert_string_equal(variable_of(R"({"sub":"alice"})", "sub").c_str(), "alice");
    assert_string_equal(variable_of(R"({"orgId":"acme","x":1})", "orgid").c_str(), "acme");
    assert_string_equal(variable_of(R"({"ORGID":7})", "orgid").c_str(), "7");
    assert_string_equal(variable_of(R"({"Admin":true})", "admin").c_str(), "true");
    assert_string_equal(variable_of(R"({"SUB":"big","sub":"small","Sub":"both"})", "sub").c_str(), "small");
}

void test_a_variable_that_several_claims_could_mean_is_empty(void**) {
    assert_string_equal(variable_of(R"({"orgId":"a","orgID":"b"})", "orgid").c_str(), "");
    assert_string_equal(variable_of(R"({"orgId":"a","orgID":null})", "orgid").c_str(), "");
    assert_string_equal(variable_of(R"({"orgid":null,"orgID":"b"})", "orgid").c_str(), "");
}

void test_a_variable_is_no_claim_inside_another_and_no_part_of_a_name(void**) {
    for (const char* name : {"a", "ab", "abcd", "abc.d", "d", "abc_d", ""}) {
        assert_string_equal(variable_of(R"({"abc":{"d":"x"},"abc_":"y","xabc":"z"})", name).c_str(), "");
    }
    char number[kLongestNumber];
    assert_true(variable_text(Json(), "sub", number).empty());
}

void test_text_that_is_nested_too_deep_is_refused_and_harmless(void**) {
    for (const std::size_t depth : {2000U, 3000U, 6000U}) {
        std::string arrays = "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
        std::string objects = "1";
        for (std::size_t i = 0; i < depth; i++) {
            objects = "{\"a\":" + objects + "}";
        }
        for (const std::string& text :
             {arrays, objects, "{\"a\":" + std::string(depth, '['), objects.substr(0, 5 * depth)}) {
            const Json object = parsed(text);
            assert_true(!object || depth <= 3000);
        }
    }
}

void test_text_lives_as_long_as_the_claims(void**) {
    Json copy;
    std::string_view text;
    char number[kLongestNumber];
    {
        const Json object = parsed(R"({"sub":"alice"})");
        copy = object;
        text = claim_text(object, "sub", number);
    }
    assert_true(text == "alice");
    assert_true(claim_text(copy, "sub", number) == "alice");
    Json moved = std::move(copy);
    assert_true(claim_text(moved, "sub", number) == "alice");
    assert_true(claim_text(copy, "sub", number).empty());  // NOLINT: what was moved from is empty
}

void test_any_bytes_are_read_or_refused(void**) {
    const bool kept = rc::check("any bytes are harmless", [] {
        const auto pieces = *rc::gen::container<std::vector<std::string>>(
            rc::gen::element<std::string>("{", "}", "[", "]", ":", ",", "\"a\"", "\"b\"", "1", "-", "e9", ".",
                                          "\\u0000", "\"", "true", "null", "\xff", "\xc3", " "));
        std::string text;
        for (const std::string& piece : pieces) {
            text += piece;
        }
        const Json object = parsed(text);
        text_of(object, "a");
        text_of(object, "a.b");
    });
    assert_true(kept);
}

}  // namespace
}  // namespace rate_limit::identity

int main() {
    using namespace rate_limit::identity;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_an_object_is_read),
        cmocka_unit_test(test_what_is_no_object_is_refused),
        cmocka_unit_test(test_a_name_that_stands_twice_is_refused_at_any_depth),
        cmocka_unit_test(test_what_is_not_utf8_is_refused),
        cmocka_unit_test(test_a_string_is_text_as_it_is),
        cmocka_unit_test(test_a_string_with_a_nul_is_whole_or_refused_but_never_its_beginning),
        cmocka_unit_test(test_a_number_is_text),
        cmocka_unit_test(test_every_integer_is_written_whole),
        cmocka_unit_test(test_every_real_reads_back_as_itself),
        cmocka_unit_test(test_a_number_that_no_machine_holds_is_refused_or_text_but_no_other_number),
        cmocka_unit_test(test_a_boolean_is_text),
        cmocka_unit_test(test_other_values_are_empty),
        cmocka_unit_test(test_a_claim_that_is_not_there_is_empty),
        cmocka_unit_test(test_a_dot_leads_into_an_object),
        cmocka_unit_test(test_a_claim_with_dots_in_its_name_is_found_by_its_whole_name_first),
        cmocka_unit_test(test_an_object_with_dots_in_its_name_is_led_into),
        cmocka_unit_test(test_a_deep_claim_is_found_and_a_path_of_any_length_is_harmless),
        cmocka_unit_test(test_a_variable_names_a_claim_whatever_its_case),
        cmocka_unit_test(test_a_variable_that_several_claims_could_mean_is_empty),
        cmocka_unit_test(test_a_variable_is_no_claim_inside_another_and_no_part_of_a_name),
        cmocka_unit_test(test_text_that_is_nested_too_deep_is_refused_and_harmless),
        cmocka_unit_test(test_text_lives_as_long_as_the_claims),
        cmocka_unit_test(test_any_bytes_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
