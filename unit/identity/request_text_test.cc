// Arguments and cookies as names of clients: which one is meant, and when none is.
#include "identity/request_text.h"

#include <rapidcheck.h>

#include <cctype>
#include <cstdlib>
#include <string>
#include <vector>

#include "test.h"

namespace rate_limit::identity {
namespace {

std::string only_argument(std::string_view query, std::string_view name) {
    return std::string(find_argument(query, name).only());
}

void assert_argument(std::string_view query, std::string_view name, std::size_t count,
                     std::string_view value) {
    const Found found = find_argument(query, name);
    if (found.count != count || found.value != value) {
        fail_msg("%s in %s: %zu times, \"%s\"", std::string(name).c_str(), std::string(query).c_str(),
                 found.count, std::string(found.value).c_str());
    }
    if (found.count != 0 && !found.value.empty()) {
        assert_true(found.value.data() >= query.data());
        assert_true(found.value.data() + found.value.size() <= query.data() + query.size());
    }
}

Found cookie_in(std::string_view header, std::string_view name) {
    Found found;
    find_cookie(header, name, &found);
    return found;
}

void assert_cookie(std::string_view header, std::string_view name, std::size_t count,
                   std::string_view value) {
    const Found found = cookie_in(header, name);
    if (found.count != count || found.value != value) {
        fail_msg("%s in %s: %zu times, \"%s\"", std::string(name).c_str(), std::string(header).c_str(),
                 found.count, std::string(found.value).c_str());
    }
}

std::string decoded(std::string_view value) {
    std::string out(value.size(), '\x5a');
    const std::size_t size = decode_argument(value, out.data());
    assert_true(size <= value.size());
    for (std::size_t i = size; i < out.size(); i++) {
        assert_int_equal(out[i], '\x5a');
    }
    return out.substr(0, size);
}

void test_an_argument_is_found_wherever_it_stands(void**) {
    for (const char* query : {"key=abc", "key=abc&b=2", "a=1&key=abc", "a=1&key=abc&b=2", "&key=abc&",
                              "a&key=abc", "a=1&&key=abc", "=x&key=abc", "a=key=b&key=abc"}) {
        assert_argument(query, "key", 1, "abc");
        assert_string_equal(only_argument(query, "key").c_str(), "abc");
    }
}

void test_another_argument_is_not_found(void**) {
    for (const char* query :
         {"", "&", "=", "&&", "k=1", "keys=1", "akey=1", "ke=y", "a=key", "a=key=b", "=key", "a=1;key=2",
          "key%20=1", "+key=1", "key%00=1", "%6bey%3d1", "a?key=1", "key[]=1"}) {
        assert_argument(query, "key", 0, "");
    }
}

void test_an_argument_that_is_given_twice_yields_nothing(void**) {
    for (const char* query :
         {"key=a&key=b", "key=a&key=a", "key=a&x=1&key=b", "key=&key=b", "key=a&key=", "key=a&KEY=b",
          "key=a&k%65y=b", "key=a&%6B%45%79=b", "key=a&key", "key&key=a", "key=a&key=b&key=c", "key&key"}) {
        const Found found = find_argument(query, "key");
        assert_true(found.count >= 2);
        assert_true(found.only().empty());
    }
    assert_int_equal(find_argument("key=a&key=b&key=c", "key").count, 3);
    assert_true(find_argument("key=a&key=b", "key").value == "a");
}

void test_an_empty_argument_yields_nothing(void**) {
    for (const char* query : {"key=", "key", "key=&a=1", "key&a=1", "a=1&key", "a=1&key="}) {
        assert_argument(query, "key", 1, "");
        assert_true(find_argument(query, "key").only().empty());
    }
}

void test_names_of_arguments_are_compared_without_regard_to_case(void**) {
    assert_argument("KEY=abc", "key", 1, "abc");
    assert_argument("key=abc", "KEY", 1, "abc");
    assert_argument("kEy=ABC", "KeY", 1, "ABC");
    assert_argument("a@=1", "A`", 0, "");
    assert_argument("a[=1", "A{", 0, "");
    assert_argument("\xe4=1", "\xc4", 0, "");
}

void test_names_of_arguments_are_compared_decoded(void**) {
    assert_argument("k%65y=abc", "key", 1, "abc");
    assert_argument("%6b%65%79=abc", "key", 1, "abc");
    assert_argument("%6B%45%59=abc", "key", 1, "abc");
    assert_argument("a%2db=1", "a-b", 1, "1");
    assert_argument("a%3Db=1", "a=b", 1, "1");
    assert_argument("a%26b=1", "a&b", 1, "1");
    assert_argument("a%2Bb=1", "a+b", 1, "1");
    assert_argument("a+b=1", "a b", 1, "1");
    assert_argument("a%20b=1", "a b", 1, "1");
}

void test_a_name_with_a_faulty_escape_is_no_other_name(void**) {
    for (const char* query : {"k%6=1", "ke%=1", "ke%7=1", "ke%7", "ke%", "k%zzy=1", "k%6gy=1", "%=1",
                              "%6b%65%7=1", "ke%79%=1", "k%256ey=1"}) {
        assert_argument(query, "key", 0, "");
    }
    assert_argument("%zz=1", "%zz", 1, "1");
    assert_argument("ke%=1", "ke%", 1, "1");
}

void test_a_name_is_read_no_further_than_the_query(void**) {
    const std::string query = "key=abc";
    for (std::size_t size = 0; size <= query.size(); size++) {
        const std::string exact(query, 0, size);
        const Found found = find_argument(std::string_view(exact.data(), size), "key");
        assert_int_equal(found.count, size >= 3);
        assert_true(found.value == (size > 4 ? std::string_view("abc").substr(0, size - 4) : ""));
    }
    const std::string escaped = "a=1&%6b%65%79=2";
    for (std::size_t size = 0; size < 13; size++) {
        const std::vector<char> exact(escaped.begin(), escaped.begin() + static_cast<long>(size));
        assert_int_equal(find_argument(std::string_view(exact.data(), size), "key").count, 0);
    }
}

void test_values_stand_as_they_were_sent(void**) {
    assert_argument("key=a%62c", "key", 1, "a%62c");
    assert_argument("key=a=b", "key", 1, "a=b");
    assert_argument("key==", "key", 1, "=");
    assert_argument("key=a;b", "key", 1, "a;b");
    assert_argument("key=a;key=b", "key", 1, "a;key=b");
    assert_argument("key=%", "key", 1, "%");
    assert_argument(std::string_view("key=a\0b", 7), "key", 1, std::string_view("a\0b", 3));
}

void test_a_value_is_decoded_as_an_application_reads_it(void**) {
    assert_string_equal(decoded("a%62c").c_str(), "abc");
    assert_string_equal(decoded("abc").c_str(), "abc");
    assert_string_equal(decoded("a+b").c_str(), "a b");
    assert_string_equal(decoded("a%2Bb%2bc").c_str(), "a+b+c");
    assert_string_equal(decoded("%41%4a%4A%61").c_str(), "AJJa");
    assert_string_equal(decoded("").c_str(), "");
    assert_true(decoded("a%00b") == std::string("a\0b", 3));
    assert_true(decoded("%ff%FE") == "\xff\xfe");
    assert_string_equal(decoded("%25%34%31").c_str(), "%41");
}

void test_a_faulty_escape_stays_as_it_is(void**) {
    for (const char* text :
         {"%", "%%", "%4", "a%", "a%4", "%zz", "%4z", "%z4", "% 4", "%-1", "%0x", "%%%", "%G0"}) {
        assert_string_equal(decoded(text).c_str(), text);
    }
    assert_string_equal(decoded("%%41").c_str(), "%A");
    assert_string_equal(decoded("%4%41").c_str(), "%4A");
    assert_string_equal(decoded("%zz%41%").c_str(), "%zzA%");
}

void test_an_escape_is_read_no_further_than_the_value(void**) {
    const std::string text = "x%41";
    assert_string_equal(decoded(std::string_view(text).substr(0, 2)).c_str(), "x%");
    assert_string_equal(decoded(std::string_view(text).substr(0, 3)).c_str(), "x%4");
}

// Another way to read a query: into pieces first.
std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts(1);
    for (const char c : text) {
        if (c == separator) {
            parts.emplace_back();
        } else {
            parts.back() += c;
        }
    }
    return parts;
}

std::string percent_decoded(const std::string& text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); i++) {
        if (text[i] == '%' && i + 2 < text.size() && std::isxdigit(static_cast<unsigned char>(text[i + 1])) &&
            std::isxdigit(static_cast<unsigned char>(text[i + 2]))) {
            out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
            i += 2;
        } else {
            out += text[i] == '+' ? ' ' : text[i];
        }
    }
    return out;
}

std::string small(std::string text) {
    for (char& c : text) {
        c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    return text;
}

rc::Gen<std::string> any_query() {
    const auto piece =
        rc::gen::element<std::string>("k", "K", "e", "=", "=", "&", "&", "%6b", "%6B", "%4b", "%65", "%",
                                      "%6", "+", ";", "ke", "k=", "&k=", "%00", "%26", "%3d", "\xff");
    return rc::gen::map(rc::gen::container<std::vector<std::string>>(piece),
                        [](const std::vector<std::string>& pieces) {
                            std::string all;
                            for (const std::string& each : pieces) {
                                all += each;
                            }
                            return all;
                        });
}

void test_every_query_is_read_as_by_splitting_it_first(void**) {
    setenv("RC_PARAMS", "max_success=2000", 0);
    const bool kept = rc::check("the same as by splitting", [] {
        const std::string query = *any_query();
        const auto name = *rc::gen::element<std::string>("k", "ke", "K E", "e", "", "k=", "%");
        std::size_t count = 0;
        std::string value;
        for (const std::string& part : split(query, '&')) {
            const std::size_t equals = part.find('=');
            if (small(percent_decoded(part.substr(0, equals))) == small(name)) {
                value = count++ == 0 && equals != std::string::npos ? part.substr(equals + 1) : value;
            }
        }
        RC_PRE(!name.empty());
        const Found found = find_argument(query, name);
        RC_ASSERT(found.count == count);
        RC_ASSERT(std::string(found.value) == value);
        RC_ASSERT(decoded(found.value) == percent_decoded(value));
    });
    assert_true(kept);
}

void test_whatever_is_escaped_comes_back(void**) {
    const bool kept = rc::check("escaped text comes back", [] {
        const auto text = *rc::gen::arbitrary<std::string>();
        std::string escaped;
        for (const char c : text) {
            char hex[8];
            std::snprintf(hex, sizeof(hex), *rc::gen::arbitrary<bool>() ? "%%%02x" : "%%%02X",
                          static_cast<unsigned>(static_cast<unsigned char>(c)));
            escaped += hex;
        }
        RC_ASSERT(decoded(escaped) == text);
    });
    assert_true(kept);
}

void test_a_cookie_is_found_wherever_it_stands(void**) {
    for (const char* header :
         {"sid=abc", "sid=abc; b=2", "a=1; sid=abc", "a=1; sid=abc; b=2", "a=1;sid=abc;b=2", "a=1;  sid=abc",
          "a=1 ; sid=abc ; b=2", " sid=abc ", "; sid=abc;", ";;sid=abc", "a; sid=abc", "=x; sid=abc",
          "a=sid=1; sid=abc", "sid=abc;"}) {
        assert_cookie(header, "sid", 1, "abc");
        assert_true(cookie_in(header, "sid").only() == "abc");
    }
}

void test_another_cookie_is_not_found(void**) {
    for (const char* header : {"", ";", "=", "; ;", "si=1", "sids=1", "xsid=1", "a=sid", "a=sid=1", "=sid",
                               "a=1&sid=2", "s%69d=1", "s id=1", "a=\"x sid=1\""}) {
        assert_cookie(header, "sid", 0, "");
    }
}

void test_a_cookie_that_is_given_twice_yields_nothing(void**) {
    for (const char* header : {"sid=a; sid=b", "sid=a; sid=a", "sid=a; x=1; sid=b", "sid=; sid=b",
                               "sid=a; sid=", "sid=a; SID=b", "sid=a;sid=b", "sid=a; sid=b; sid=c"}) {
        const Found found = cookie_in(header, "sid");
        assert_true(found.count >= 2);
        assert_true(found.only().empty());
    }
}

void test_a_cookie_of_two_headers_yields_nothing(void**) {
    Found found;
    find_cookie("a=1; sid=x", "sid", &found);
    assert_true(found.only() == "x");
    find_cookie("b=2", "sid", &found);
    assert_true(found.only() == "x");
    find_cookie("sid=y", "sid", &found);
    assert_int_equal(found.count, 2);
    assert_true(found.only().empty());
    assert_true(found.value == "x");
}

void test_an_empty_cookie_yields_nothing(void**) {
    for (const char* header : {"sid=", "sid=;", "sid=; a=1", "a=1; sid=", "sid= ; a=1", "sid", "sid; a=1"}) {
        assert_true(cookie_in(header, "sid").only().empty());
    }
}

void test_names_of_cookies_are_compared_without_regard_to_case(void**) {
    assert_cookie("SID=abc", "sid", 1, "abc");
    assert_cookie("sid=abc", "SID", 1, "abc");
    assert_cookie("sId=ABC", "SiD", 1, "ABC");
    assert_cookie("a@=1", "A`", 0, "");
}

void test_values_of_cookies_stand_as_they_were_sent(void**) {
    assert_cookie("sid=a%62c", "sid", 1, "a%62c");
    assert_cookie("sid=a+b", "sid", 1, "a+b");
    assert_cookie("sid=a=b", "sid", 1, "a=b");
    assert_cookie("sid==", "sid", 1, "=");
    assert_cookie("sid=\"abc\"", "sid", 1, "\"abc\"");
    assert_cookie("sid=a b", "sid", 1, "a b");
    assert_cookie("sid=a,b", "sid", 1, "a,b");
    assert_cookie("sid=\xc3\xa4\xff", "sid", 1, "\xc3\xa4\xff");
}

void test_a_cookie_is_read_no_further_than_the_header(void**) {
    const std::string header = "sid=abc";
    for (std::size_t size = 0; size <= header.size(); size++) {
        const std::vector<char> exact(header.begin(), header.begin() + static_cast<long>(size));
        const Found found = cookie_in(std::string_view(exact.data(), size), "sid");
        assert_true(found.only() == (size > 4 ? std::string_view("abc").substr(0, size - 4) : ""));
    }
}

void test_a_cookie_that_is_found_lies_in_its_header(void**) {
    const bool kept = rc::check("a cookie lies in its header", [] {
        const auto pieces = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
            "sid", "SID", "=", ";", " ", "\t", "; ", "a", "\"", ",", "sid=", "\xff"));
        std::string header;
        for (const std::string& piece : pieces) {
            header += piece;
        }
        const Found found = cookie_in(header, "sid");
        if (found.count != 0 && !found.value.empty()) {
            RC_ASSERT(found.value.data() >= header.data());
            RC_ASSERT(found.value.data() + found.value.size() <= header.data() + header.size());
            RC_ASSERT(found.value.find(';') == std::string_view::npos);
            RC_ASSERT(found.value.front() != ' ' && found.value.back() != ' ');
        }
        RC_ASSERT(found.only().empty() || found.count == 1);
        std::size_t names = 0;
        for (const std::string& part : split(header, ';')) {
            names += small(part).find("sid") != std::string::npos ? 1 : 0;
        }
        RC_ASSERT(found.count <= names);
    });
    assert_true(kept);
}

}  // namespace
}  // namespace rate_limit::identity

int main() {
    using namespace rate_limit::identity;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_an_argument_is_found_wherever_it_stands),
        cmocka_unit_test(test_another_argument_is_not_found),
        cmocka_unit_test(test_an_argument_that_is_given_twice_yields_nothing),
        cmocka_unit_test(test_an_empty_argument_yields_nothing),
        cmocka_unit_test(test_names_of_arguments_are_compared_without_regard_to_case),
        cmocka_unit_test(test_names_of_arguments_are_compared_decoded),
        cmocka_unit_test(test_a_name_with_a_faulty_escape_is_no_other_name),
        cmocka_unit_test(test_a_name_is_read_no_further_than_the_query),
        cmocka_unit_test(test_values_stand_as_they_were_sent),
        cmocka_unit_test(test_a_value_is_decoded_as_an_application_reads_it),
        cmocka_unit_test(test_a_faulty_escape_stays_as_it_is),
        cmocka_unit_test(test_an_escape_is_read_no_further_than_the_value),
        cmocka_unit_test(test_every_query_is_read_as_by_splitting_it_first),
        cmocka_unit_test(test_whatever_is_escaped_comes_back),
        cmocka_unit_test(test_a_cookie_is_found_wherever_it_stands),
        cmocka_unit_test(test_another_cookie_is_not_found),
        cmocka_unit_test(test_a_cookie_that_is_given_twice_yields_nothing),
        cmocka_unit_test(test_a_cookie_of_two_headers_yields_nothing),
        cmocka_unit_test(test_an_empty_cookie_yields_nothing),
        cmocka_unit_test(test_names_of_cookies_are_compared_without_regard_to_case),
        cmocka_unit_test(test_values_of_cookies_stand_as_they_were_sent),
        cmocka_unit_test(test_a_cookie_is_read_no_further_than_the_header),
        cmocka_unit_test(test_a_cookie_that_is_found_lies_in_its_header),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
