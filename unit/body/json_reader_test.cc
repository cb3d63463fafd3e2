// Numbers in JSON documents: paths, pieces of any size, malformed documents, and bounded memory.
#include "body/json_reader.h"

#include <jansson.h>

#include "documents.h"
#include "test.h"

namespace rate_limit::body {
namespace {

void assert_read(std::string_view path, std::string_view document, std::string_view expected,
                 Syntax syntax = Syntax::kGood) {
    const Paths paths = paths_of({path});
    assert_int_equal(paths.size, 1);
    const Reading whole = read_whole(paths, Format::kJson, document);
    assert_string_equal(whole.numbers.c_str(), std::string(expected).c_str());
    assert_int_equal(static_cast<int>(whole.syntax), static_cast<int>(syntax));
    for (const std::size_t size : {1, 2, 3, 7, 16}) {
        const Reading pieces = read_pieces(paths, Format::kJson, document, {size});
        assert_string_equal(pieces.numbers.c_str(), whole.numbers.c_str());
        assert_int_equal(static_cast<int>(pieces.syntax), static_cast<int>(syntax));
    }
}

void test_reads_the_number_at_a_path(void**) {
    assert_read("a", R"({"a":1})", "1");
    assert_read("usage.total_tokens", R"({"id":"x","usage":{"prompt_tokens":3,"total_tokens":12}})", "12");
    assert_read("usage.total_tokens", R"( { "usage" : { "total_tokens" : 12 , "z":[] } } )", "12");
    assert_read("a.b.c.d", R"({"a":{"b":{"x":{"d":9},"c":{"d":4}},"c":1}})", "4");
    assert_read("a", R"({"b":{"a":1}})", "-");
    assert_read("a.b", R"({"a":[{"b":1}]})", "-");
    assert_read("a", R"({"a":{"a":1}})", "-");
    assert_read("a.a", R"({"a":{"a":1}})", "1");
    assert_read("a", "5", "-");
    assert_read("a", "\"a\"", "-");
}

void test_keeps_the_digits(void**) {
    for (const char* number : {"0", "9007199254740991", "0.1", "1234.5670", "-3", "1e3", "1.5E-7",
                               "12345678901234567890123456789012"}) {
        assert_read("a", std::string(R"({"a":)") + number + "}", number);
    }
    assert_read("a", R"({"a":123456789012345678901234567890123})", "-");
}

void test_reads_array_elements(void**) {
    assert_read("a.1", R"({"a":[1,2,3]})", "2");
    assert_read("a.2", R"({"a":["x",null,3]})", "3");
    assert_read("a.3", R"({"a":[[9,9,9,9],{"3":8},true,3]})", "3");
    assert_read("choices.0.n", R"({"choices":[{"n":5},{"n":6}]})", "5");
    assert_read("choices.1.n", R"({"choices":[{"n":5},{"n":6}]})", "6");
    assert_read("0", "[7]", "7");
    assert_read("0.0.1", "[[[1,2]]]", "2");
    assert_read("a.0", R"({"a":{"0":4}})", "4");
    assert_read("a.01", R"({"a":[1,2]})", "-");
}

void test_takes_the_last_of_duplicates(void**) {
    assert_read("a", R"({"a":1,"a":2})", "2");
    assert_read("a.b", R"({"a":{"b":1},"a":{"b":2}})", "2");
    assert_read("a.b", R"({"a":{"b":1},"a":{"c":2}})", "1");
}

void test_ignores_values_that_are_no_numbers(void**) {
    for (const char* value : {"null", "true", "\"12\"", "{}", "[]", "[12]"}) {
        assert_read("a", std::string(R"({"a":)") + value + "}", "-");
        assert_read("a", std::string(R"({"a":5,"b":)") + value + "}", "5");
    }
}

void test_compares_decoded_names(void**) {
    assert_read("ab", R"({"\u0061b":1})", "1");
    assert_read("\xc3\xa9", R"({"\u00e9":1})", "1");
    assert_read(std::string(64, 'k'), R"({")" + std::string(64, 'k') + R"(":1})", "1");
    std::string escaped;
    for (int i = 0; i < 64; i++) {
        escaped += "\\u006b";
    }
    assert_read(std::string(64, 'k'), R"({")" + escaped + R"(":1})", "1");
    assert_read(std::string(64, 'k'), R"({")" + escaped + R"(k":1})", "-");
}

void test_skips_long_strings(void**) {
    for (const std::size_t size : {30, 31, 32, 33, 380, 383, 384, 385, 386, 387, 5000}) {
        const std::string text(size, 's');
        assert_read("a", R"({"x":")" + text + R"(","a":1})", "1");
        assert_read("a", R"({")" + text + R"(":0,"a":1})", "1");
        assert_read("a.1", R"({"a":[")" + text + R"(",1]})", "1");
        assert_read("a", R"({"x":")" + text + R"(\"\\\/\b\f\n\r\t\uAbF9","a":1})", "1");
        assert_read("a", R"({"x":")" + text + R"(\u00g0","a":1})", "-", Syntax::kMalformed);
        assert_read("a", R"({"x":")" + text + R"(\x","a":1})", "-", Syntax::kMalformed);
        assert_read("a", R"({"x":")" + text + "\n" + R"(","a":1})", "-", Syntax::kMalformed);
        assert_read("a", R"({"a":1,"x":")" + text, "-", Syntax::kMalformed);
    }
}

// Values beside the path end where they should, wherever a block of the search begins.
void test_skips_values_beside_the_path(void**) {
    const Paths paths = paths_of({"a"});
    for (std::size_t before = 0; before < 204; before++) {
        const std::string in_string =
            "\"" + std::string(before, ' ') + R"(\\\"]}\n)" + std::string(63, ' ') + "\"";
        for (const std::string_view text :
             {R"("]}")", R"("\\")", R"("\"]")", R"("\\\"}]")", R"({"a":[{}]})", R"([[],"",{"x":"\\\\"}])",
              "1,2", R"("\\\\\\\\\\","]")", in_string.c_str()}) {
            const std::string document =
                R"({"x":[)" + std::string(before, ' ') + std::string(text) + R"(],"a":1})";
            for (const std::size_t size : {document.size(), std::size_t{64}, std::size_t{7}}) {
                const Reading reading = read_pieces(paths, Format::kJson, document, {size});
                assert_string_equal(reading.numbers.c_str(), "1");
                assert_int_equal(static_cast<int>(reading.syntax), static_cast<int>(Syntax::kGood));
            }
        }
    }
    for (const char* text : {"[}", "{]", R"([["]"}])", "[[]", R"(["])"}) {
        assert_read("a", std::string(R"({"x":)") + text + R"(,"a":1})", "-", Syntax::kMalformed);
    }
    assert_read("a", R"({"x":[1,,nul "\z" :],"a":1})", "1");  // only brackets are checked
    assert_read("a.x", R"({"a":{"x":[1,2],"y":3}})", "-");
    assert_read("a.y", R"({"a":{"x":[1,2],"y":3}})", "3");
    assert_read("x.1.y", R"({"x":[{"y":1},{"z":[{"y":9}],"y":2},{"y":3}]})", "2");
}

void test_refuses_malformed_documents(void**) {
    for (const char* text :
         {R"({"a":1)", R"({"a":1}})", R"({"a":1} x)", R"({"a":1,})", R"({a:1})", R"({"a" 1})", R"({"a":01})",
          R"({"a":1.})", R"({"a":.5})", R"({"a":+1})", R"({"a":1}{"a":2})", "", " ", "[DONE]",
          R"({"a":1,"b":"\)", R"({"a":nul})", R"(["a":1])", R"({"a":1/**/})"}) {
        assert_read("a", text, "-", Syntax::kMalformed);
    }
}

void test_bounds_depth(void**) {
    const auto nested = [](std::size_t depth) {
        return R"({"a":1,"b":)" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
    };
    assert_read("a", nested(kMaxDepth), "1");
    assert_read("a", nested(kMaxDepth + 1), "-", Syntax::kTooLarge);
    assert_read("a", std::string(100'000, '['), "-", Syntax::kTooLarge);
}

void test_bounds_numbers(void**) {
    assert_read("a", R"({"b":)" + std::string(kMaxAnyNumber, '1') + R"(,"a":1})", "1");
    assert_read("a", R"({"b":)" + std::string(kMaxAnyNumber + 1, '1') + R"(,"a":1})", "-", Syntax::kTooLarge);
    assert_read("a", R"({"a":)" + std::string(100'000, '1') + "}", "-", Syntax::kTooLarge);
    assert_read("a", R"({"a":)" + std::string(100'000, '1'), "-", Syntax::kTooLarge);
    assert_read("a", R"({"b":[)" + std::string(100'000, '1') + R"(],"a":1})", "1");
    assert_read("a", R"({"a":1})" + std::string(100'000, ' '), "1");
}

// The largest use: the deepest nesting, the longest names in escapes and the longest numbers, in pieces.
void test_bounds_memory(void**) {
    constexpr std::size_t kBound = 6000;  // bytes
    const Paths paths = paths_of({"a"});
    std::string escaped;
    for (int i = 0; i < 64; i++) {
        escaped += "\\u00e9";
    }
    std::string text;
    for (std::size_t i = 0; i < kMaxDepth - 1; i++) {
        text += R"({")" + escaped + R"(":)";
    }
    text += "[";
    for (int i = 0; i < 1000; i++) {
        text += std::string(kMaxAnyNumber, '7') + R"(,")" + escaped + R"(",)";
    }
    for (const std::size_t size : {1, 5, 255, 4096}) {
        JsonReader reader;
        reader.begin(&paths);
        for (std::size_t at = 0; at < text.size(); at += size) {
            reader.feed(text.data() + at, std::min(size, text.size() - at));
        }
        assert_in_range(reader.used(), 1, kBound);
        assert_int_equal(static_cast<int>(reader.finish()), static_cast<int>(Syntax::kMalformed));
    }
}

void test_reads_several_paths(void**) {
    const Paths paths = paths_of({"a.b", "a.c", "a", "d.0", "d.1.b", "a.b"});
    const Reading reading = read_whole(paths, Format::kJson, R"({"a":{"b":1,"c":2},"d":[3,{"b":4}],"a":5})");
    assert_string_equal(reading.numbers.c_str(), "1 2 5 3 4 1");
}

void test_parses_paths(void**) {
    Path path;
    for (const char* good : {"a", "a.b", "0", "a.0.b", "a-b_c d", "$a", "\xc3\xa9"}) {
        assert_null(parse_path(good, &path));
    }
    const std::string deep = "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a";
    assert_null(parse_path(deep, &path));
    for (const std::string& bad :
         {std::string(), std::string("."), std::string("a."), std::string(".a"), std::string("a..b"),
          std::string("a\"b"), std::string("a\\b"), std::string("a\nb"), std::string(65, 'a'), deep + ".a"}) {
        assert_non_null(parse_path(bad, &path));
    }
}

// The number that jansson finds at a path of two names.
std::string found_by_jansson(const std::string& text, const char* first, const char* second) {
    json_t* root = json_loads(text.c_str(), JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, nullptr);
    const auto step = [](const json_t* from, const char* name) {
        const bool is_index = name[0] >= '0' && name[0] <= '9';
        return json_is_array(from)
                   ? (is_index ? json_array_get(from, static_cast<std::size_t>(std::atoi(name))) : nullptr)
                   : json_object_get(from, name);
    };
    const json_t* value = root != nullptr ? step(step(root, first), second) : nullptr;
    const std::string number = json_is_number(value) ? std::to_string(json_number_value(value)) : "-";
    json_decref(root);
    return number;
}

// Well-formed documents with names that occur once are read as jansson reads them.
void test_agrees_with_jansson(void**) {
    assert_true(rc::check("the number is jansson's", [] {
        const std::string text = *arbitrary_value(3);
        json_t* unique = json_loads(text.c_str(), JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, nullptr);
        const bool is_unique = unique != nullptr;
        json_decref(unique);
        RC_PRE(is_unique);
        for (const auto& [first, second] : {std::pair("a", "b"), std::pair("a", "1"), std::pair("1", "a")}) {
            const std::string path = std::string(first) + "." + second;
            const Reading reading = read_whole(paths_of({path}), Format::kJson, text);
            RC_ASSERT(reading.syntax == Syntax::kGood);
            const std::string expected = found_by_jansson(text, first, second);
            RC_ASSERT((reading.numbers == "-" ? "-" : std::to_string(std::stod(reading.numbers))) ==
                      expected);
        }
    }));
}

// Pieces of any sizes give what the whole document gives.
void test_does_not_depend_on_pieces(void**) {
    assert_true(rc::check("pieces are read like the whole", [] {
        const std::string text = *rc::gen::oneOf(arbitrary_document(), arbitrary_value(3));
        const auto sizes = *rc::gen::nonEmpty(
            rc::gen::container<std::vector<std::size_t>>(rc::gen::inRange<std::size_t>(1, 40)));
        const Paths paths = paths_of({"a", "a.b", "a.0", "0", "1.a"});
        RC_ASSERT(read_pieces(paths, Format::kJson, text, sizes) == read_whole(paths, Format::kJson, text));
    }));
}

}  // namespace
}  // namespace rate_limit::body

int main() {
    using namespace rate_limit::body;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_the_number_at_a_path),
        cmocka_unit_test(test_keeps_the_digits),
        cmocka_unit_test(test_reads_array_elements),
        cmocka_unit_test(test_takes_the_last_of_duplicates),
        cmocka_unit_test(test_ignores_values_that_are_no_numbers),
        cmocka_unit_test(test_compares_decoded_names),
        cmocka_unit_test(test_skips_long_strings),
        cmocka_unit_test(test_skips_values_beside_the_path),
        cmocka_unit_test(test_refuses_malformed_documents),
        cmocka_unit_test(test_bounds_depth),
        cmocka_unit_test(test_bounds_numbers),
        cmocka_unit_test(test_bounds_memory),
        cmocka_unit_test(test_reads_several_paths),
        cmocka_unit_test(test_parses_paths),
        cmocka_unit_test(test_agrees_with_jansson),
        cmocka_unit_test(test_does_not_depend_on_pieces),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
