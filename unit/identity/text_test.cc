// Values of clients: trimming, comparison of header names, and escaping.
#include <rapidcheck.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "identity/request_text.h"
#include "test.h"

namespace rate_limit::identity {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// Into memory that is as large as the contract says, and no more is touched.
std::string escaped(std::string_view text) {
    std::string out(3 * text.size() + 1, '\x5a');
    const std::size_t size = escape(text, out.data());
    assert_true(size <= 3 * text.size());
    assert_int_equal(out.back(), '\x5a');
    return out.substr(0, size);
}

std::string unescaped(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); i++) {
        if (text[i] == '%') {
            assert_true(i + 2 < text.size());
            out += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
            i += 2;
        } else {
            out += text[i];
        }
    }
    return out;
}

// Bytes with many that matter here.
rc::Gen<std::string> any_text() {
    const auto letter =
        rc::gen::weightedOneOf<char>({{3, rc::gen::arbitrary<char>()},
                                      {2, rc::gen::element('%', '\n', '\0', '\x7f', ' ', '\t')},
                                      {3, rc::gen::element('a', '0', 'A', 'f')}});
    return rc::gen::container<std::string>(letter);
}

void test_blanks_and_tabs_around_a_value_are_cut_off(void**) {
    for (const char* text : {"abc", " abc", "abc ", "  abc  ", "\tabc\t", " \t abc \t "}) {
        assert_true(trim(text) == "abc");
    }
    for (const char* text : {"", " ", "\t", " \t \t "}) {
        assert_true(trim(text).empty());
    }
    assert_true(trim(" a b\tc ") == "a b\tc");
    assert_true(trim("\nabc\r") == "\nabc\r");
    assert_true(trim(std::string_view("\0abc\0", 5)) == std::string_view("\0abc\0", 5));
    assert_true(trim("\xa0"
                     "abc") ==
                "\xa0"
                "abc");
}

void test_a_value_is_cut_in_its_own_memory(void**) {
    const std::string text = "  abc  ";
    assert_true(trim(text).data() == text.data() + 2);
}

void test_headers_are_the_same_whatever_their_case_and_dashes(void**) {
    assert_true(same_header("X-Api-Key", "x-api-key"));
    assert_true(same_header("x_api_key", "X-API-KEY"));
    assert_true(same_header("x-api_key", "x_api-key"));
    assert_true(same_header("", ""));
    assert_true(same_header("a", "A"));
}

void test_other_headers_are_not_the_same(void**) {
    const char* const pairs[][2] = {{"x-api-key", "x-api-keys"},
                                    {"x-api-key", "x-api-ke"},
                                    {"x-api-key", "xapikey"},
                                    {"a", ""},
                                    {"a", "b"},
                                    {"a@", "a`"},
                                    {"a[", "a{"},
                                    {"-", "."},
                                    {"_", "\x7f"},
                                    {"-", "\r"},
                                    {"k", "\xe2\x84\xaa"},
                                    {"\xc4", "\xe4"}};
    for (const auto& pair : pairs) {
        assert_false(same_header(pair[0], pair[1]));
        assert_false(same_header(pair[1], pair[0]));
    }
}

void test_names_of_headers_are_compared_letter_by_letter(void**) {
    for (unsigned a = 0; a < 256; a++) {
        for (unsigned b = 0; b < 256; b++) {
            const char one = static_cast<char>(a);
            const char other = static_cast<char>(b);
            const auto canonical = [](char c) {
                return c == '_' ? '-' : c >= 'A' && c <= 'Z' ? char(c + 32) : c;
            };
            assert_int_equal(same_header({&one, 1}, {&other, 1}), canonical(one) == canonical(other));
        }
    }
}

void test_arguments_are_what_follows_the_question_mark(void**) {
    assert_true(query_of("/path?a=1&b=2") == "a=1&b=2");
    assert_true(query_of("/path?") == "");
    assert_true(query_of("/path") == "");
    assert_true(query_of("") == "");
    assert_true(query_of("?") == "");
    assert_true(query_of("?a=1") == "a=1");
    assert_true(query_of("/path?a=1?b=2") == "a=1?b=2");
    assert_true(query_of("http://example.com/path?a=1") == "a=1");
    assert_true(query_of("/a%3fb?c=1") == "c=1");
}

void test_arguments_end_at_a_fragment(void**) {
    assert_true(query_of("/path?a=1#b=2") == "a=1");
    assert_true(query_of("/path#x?a=1") == "");
}

void test_control_characters_and_percent_signs_are_escaped(void**) {
    const std::string line = escaped("a\r\nb%c\x7f");
    assert_true(line == "a%0D%0Ab%25c%7F" || line == "a%0d%0ab%25c%7f");
    assert_string_equal(escaped(std::string_view("\0", 1)).c_str(), "%00");
    assert_string_equal(escaped("\t").c_str(), "%09");
}

void test_other_characters_stand_as_they_are(void**) {
    for (const char* text :
         {"", "alice", "a b", "a:b{c}d\"e'f\\g", "\xc3\xa4\xf0\x9f\x98\x80", "\xff\x80", "~!@#$^&*()"}) {
        assert_string_equal(escaped(text).c_str(), text);
        assert_false(needs_escape(text));
        assert_false(has_control(text));
    }
}

void test_every_byte_is_escaped_if_and_only_if_it_must_be(void**) {
    for (unsigned byte = 0; byte < 256; byte++) {
        const char c = static_cast<char>(byte);
        const std::string_view text(&c, 1);
        const bool must = is_control(c) || c == '%';
        assert_int_equal(escaped(text).size(), must ? 3 : 1);
        assert_int_equal(needs_escape(text), must);
        assert_int_equal(has_control(text), is_control(c));
    }
}

void test_two_texts_are_never_escaped_to_one(void**) {
    const bool kept = rc::check("escaped text leads back", [] {
        const std::string text = *any_text();
        const std::string line = escaped(text);
        RC_ASSERT(unescaped(line) == text);
        RC_ASSERT(std::none_of(line.begin(), line.end(), is_control));
        RC_ASSERT(needs_escape(text) == (line != text));
        RC_ASSERT(has_control(text) == std::any_of(text.begin(), text.end(), is_control));
    });
    assert_true(kept);
}

}  // namespace
}  // namespace rate_limit::identity

int main() {
    using namespace rate_limit::identity;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_blanks_and_tabs_around_a_value_are_cut_off),
        cmocka_unit_test(test_a_value_is_cut_in_its_own_memory),
        cmocka_unit_test(test_headers_are_the_same_whatever_their_case_and_dashes),
        cmocka_unit_test(test_other_headers_are_not_the_same),
        cmocka_unit_test(test_names_of_headers_are_compared_letter_by_letter),
        cmocka_unit_test(test_arguments_are_what_follows_the_question_mark),
        cmocka_unit_test(test_arguments_end_at_a_fragment),
        cmocka_unit_test(test_control_characters_and_percent_signs_are_escaped),
        cmocka_unit_test(test_other_characters_stand_as_they_are),
        cmocka_unit_test(test_every_byte_is_escaped_if_and_only_if_it_must_be),
        cmocka_unit_test(test_two_texts_are_never_escaped_to_one),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
