// digest_of() is SHA-256 for every size.
#include "identity/digest.h"

#include <openssl/evp.h>

#include <cstring>
#include <string>

#include "test.h"

namespace rate_limit::identity {
namespace {

std::string hex_of(std::string_view text) {
    const Digest digest = digest_of(text);
    std::string hex;
    for (const unsigned char byte : digest.bytes) {
        char two[3];
        std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned>(byte));
        hex += two;
    }
    return hex;
}

void test_the_examples_of_fips_180_come_out(void**) {
    assert_string_equal(hex_of("").c_str(),
                        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_string_equal(hex_of("abc").c_str(),
                        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_string_equal(hex_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq").c_str(),
                        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

void test_every_size_has_the_digest_that_openssl_computes(void**) {
    std::string text;
    for (unsigned i = 0; i < 16'384; i += i < 300 ? 1 : 997) {
        while (text.size() < i) {
            text += static_cast<char>(text.size() * 31 >> 2);
        }
        unsigned char expected[32];
        assert_int_equal(EVP_Digest(text.data(), text.size(), expected, nullptr, EVP_sha256(), nullptr), 1);
        const Digest digest = digest_of(text);
        assert_memory_equal(digest.bytes, expected, sizeof(expected));
    }
}

}  // namespace
}  // namespace rate_limit::identity

int main() {
    using namespace rate_limit::identity;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_examples_of_fips_180_come_out),
        cmocka_unit_test(test_every_size_has_the_digest_that_openssl_computes),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
