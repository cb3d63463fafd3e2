// base64url: accepted texts, rejected texts, and that decoding inverts encoding.
#include "identity/base64url.h"

#include <rapidcheck.h>

#include <string>
#include <vector>

#include "test.h"
#include "tokens.h"

namespace rate_limit::identity {
namespace {

constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

// Whether a text is base64url; sets `*bytes`. The room has exactly the size that the contract requires.
bool decoded(std::string_view text, std::string* bytes) {
    std::vector<unsigned char> out((text.size() + 3) / 4 * 3 + 1, 0x5a);
    std::size_t size = 0;
    const bool good = decode_base64url(text, out.data(), &size);
    assert_int_equal(out.back(), 0x5a);
    if (good) {
        assert_true(size <= text.size());
        bytes->assign(out.begin(), out.begin() + static_cast<long>(size));
    }
    return good;
}

void assert_refused(std::string_view text) {
    std::string bytes;
    if (decoded(text, &bytes)) {
        fail_msg("\"%s\" is accepted", std::string(text).c_str());
    }
}

void assert_bytes(std::string_view text, std::string_view expected) {
    std::string bytes;
    assert_true(decoded(text, &bytes));
    assert_true(bytes == expected);
    assert_string_equal(encode_base64url(bytes_of(expected), expected.size()).c_str(),
                        std::string(text).c_str());
}

void test_the_examples_of_rfc_4648_come_out(void**) {
    assert_bytes("", "");
    assert_bytes("Zg", "f");
    assert_bytes("Zm8", "fo");
    assert_bytes("Zm9v", "foo");
    assert_bytes("Zm9vYg", "foob");
    assert_bytes("Zm9vYmE", "fooba");
    assert_bytes("Zm9vYmFy", "foobar");
}

void test_the_example_of_rfc_7515_comes_out(void**) { assert_bytes("A-z_4ME", "\x03\xec\xff\xe0\xc1"); }

void test_every_byte_goes_there_and_back(void**) {
    for (unsigned first = 0; first < 256; first++) {
        for (unsigned second = 0; second < 256; second++) {
            const std::string bytes = {static_cast<char>(first), static_cast<char>(second)};
            assert_bytes(base64url(bytes), bytes);
        }
    }
}

void test_any_bytes_go_there_and_back(void**) {
    const bool kept = rc::check("any bytes go there and back", [] {
        const auto bytes = *rc::gen::arbitrary<std::string>();
        const std::string text = encode_base64url(bytes_of(bytes), bytes.size());
        RC_ASSERT(text == base64url(bytes));
        std::string back;
        RC_ASSERT(decoded(text, &back));
        RC_ASSERT(back == bytes);
    });
    assert_true(kept);
}

void test_other_characters_are_refused_wherever_they_stand(void**) {
    for (unsigned c = 0; c < 256; c++) {
        if (c != 0 && std::string_view(kLetters).find(static_cast<char>(c)) != std::string_view::npos) {
            continue;
        }
        const char alone = static_cast<char>(c);
        assert_false(is_base64url({&alone, 1}));
        for (const std::size_t size : {1U, 2U, 3U, 4U, 6U, 7U, 8U, 66U, 67U, 68U}) {
            for (std::size_t at = 0; at < size; at++) {
                std::string text(size, 'A');
                text[at] = static_cast<char>(c);
                assert_refused(text);
            }
        }
    }
}

void test_padding_is_refused(void**) {
    for (const char* text :
         {"Zg==", "Zg=", "Zm8=", "=", "==", "====", "Zm9v=", "Zm9v====", "Z===", "Zm9vYg=="}) {
        assert_refused(text);
    }
}

void test_a_single_character_left_over_is_refused(void**) {
    for (std::size_t size = 1; size < 200; size += 4) {
        assert_refused(std::string(size, 'A'));
    }
}

void test_white_space_is_refused(void**) {
    for (const char* text :
         {" Zm9v", "Zm9v ", "Zm9v\n", "Zm\n9v", "\nZm9v", "Zm9v\r\n", "Zm 9v", "Zg\n", "\t\t\t\t"}) {
        assert_refused(text);
    }
}

void test_the_letters_are_those_of_rfc_4648(void**) {
    assert_true(is_base64url(kLetters));
    assert_true(is_base64url(""));
    assert_false(is_base64url("AAAA=AAAA"));
}

void test_the_longest_text_is_decoded(void**) {
    for (const std::size_t size : {kLongestEncoded, kLongestEncoded - 1, kLongestEncoded - 2}) {
        std::string bytes(size * 3 / 4, '\0');
        for (std::size_t i = 0; i < bytes.size(); i++) {
            bytes[i] = static_cast<char>(i * 131 >> 3);
        }
        const std::string text = base64url(bytes);
        assert_int_equal(text.size(), size);
        assert_bytes(text, bytes);
    }
}

}  // namespace
}  // namespace rate_limit::identity

int main() {
    using namespace rate_limit::identity;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_examples_of_rfc_4648_come_out),
        cmocka_unit_test(test_the_example_of_rfc_7515_comes_out),
        cmocka_unit_test(test_every_byte_goes_there_and_back),
        cmocka_unit_test(test_any_bytes_go_there_and_back),
        cmocka_unit_test(test_other_characters_are_refused_wherever_they_stand),
        cmocka_unit_test(test_padding_is_refused),
        cmocka_unit_test(test_a_single_character_left_over_is_refused),
        cmocka_unit_test(test_white_space_is_refused),
        cmocka_unit_test(test_the_letters_are_those_of_rfc_4648),
        cmocka_unit_test(test_the_longest_text_is_decoded),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
