// Key files of one algorithm: accepted content, and messages for other content.
#include "identity/signing_keys.h"

#include <openssl/err.h>

#include "verifying.h"

namespace rate_limit::identity {
namespace {

constexpr const char* kAlgorithms[] = {"HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256",
                                       "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"};

void assert_taken(std::string_view algorithm, std::string_view content) {
    SigningKeys keys;
    const Exact exact(content);
    assert_added(keys.add(algorithm, exact.view(), 0));
    assert_true(!keys.all().empty());
}

// Nothing is added, and a line is said that has `word` in it and no part of the key.
void assert_refused(std::string_view algorithm, std::string_view content, std::string_view word = "") {
    SigningKeys keys;
    const Exact exact(content);
    const std::string wrong = keys.add(algorithm, exact.view(), 0);
    if (wrong.empty()) {
        fail_msg("%s takes %.60s", std::string(algorithm).c_str(), std::string(content).c_str());
    }
    if (wrong.find(word) == std::string::npos || wrong.find('\n') != std::string::npos ||
        wrong.back() == '.') {
        fail_msg("it says \"%s\"", wrong.c_str());
    }
    assert_true(content.size() < 64 || wrong.find(content.substr(40, 16)) == std::string::npos);
}

void test_there_are_thirteen_algorithms(void**) {
    for (const char* name : kAlgorithms) {
        assert_true(is_algorithm(name));
        assert_true(std::string(kAlgorithmsAccepted).find(name) != std::string::npos);
    }
}

void test_nothing_else_is_an_algorithm(void**) {
    for (const char* name :
         {"",       "none",   "None",  "NONE",  "nOnE",        "hs256",    "Hs256",     "RS1",
          "HS1",    "ES256K", "EDDSA", "eddsa", "Ed25519",     "RSA-OAEP", "HS2566",    "HS25",
          " HS256", "HS256 ", "ANY",   "INVAL", "HS256,HS384", "jwks",     "HS512/256", "ML-DSA-44"}) {
        assert_false(is_algorithm(name));
        SigningKeys keys;
        assert_true(!keys.add(name, secret_key().secret_bytes(), 0).empty());
        assert_true(!keys.add(name, rsa_key().public_pem(), 0).empty());
        assert_true(keys.all().empty());
    }
    assert_true(is_algorithm(std::string_view("HS2567").substr(0, 5)));
}

void test_every_algorithm_takes_a_key_of_its_own_and_no_other(void**) {
    for (const Kind& algorithm : kEveryKind) {
        assert_taken(algorithm.algorithm, algorithm.file());
        for (const Kind& other : kEveryKind) {
            const bool fits =
                algorithm.signer == other.signer || std::string_view(algorithm.algorithm) == other.algorithm;
            const bool secret_for_public = algorithm.symmetric() != other.symmetric();
            if (fits && !secret_for_public) {
                assert_taken(algorithm.algorithm, other.file());
            } else {
                assert_refused(algorithm.algorithm, other.file());
            }
        }
    }
}

void test_a_secret_has_as_many_bytes_as_its_algorithm_says(void**) {
    const struct {
        const char* algorithm;
        std::size_t least;
    } cases[] = {{"HS256", 32}, {"HS384", 48}, {"HS512", 64}};
    for (const auto& each : cases) {
        assert_taken(each.algorithm, std::string(each.least, 's'));
        assert_taken(each.algorithm, std::string(each.least + 1, 's'));
        assert_taken(each.algorithm, std::string(4096, 's'));
        assert_taken(each.algorithm, std::string(each.least, '\0'));
        for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{3}, each.least - 1}) {
            assert_refused(each.algorithm, std::string(size, 's'), each.algorithm);
        }
    }
}

void test_a_newline_at_the_end_does_not_belong_to_a_secret(void**) {
    assert_refused("HS256", std::string(31, 's') + "\n", "HS256");
    const std::string token = hs256(kAlice);
    for (const char* end : {"", "\n", "\r\n"}) {
        Verifying verifier;
        assert_added(verifier.keys.add("HS256", secret_key().secret_bytes() + end, 0));
        assert_true(verifier.accepts(token));
    }
}

void test_white_space_and_zeros_belong_to_a_secret(void**) {
    for (const std::string& bytes : {std::string("\0\0\n\0 leading and inner \0 bytes count\xff\x80 ", 39),
                                     std::string(40, ' '), "\t" + std::string(40, 'x') + "\t"}) {
        Verifying verifier;
        assert_added(verifier.keys.add("HS256", bytes, 0));
        assert_true(
            verifier.accepts(signed_token(header_of("HS256"), kAlice, Signer::secret(bytes), "HS256")));
        assert_false(verifier.accepts(signed_token(
            header_of("HS256"), kAlice, Signer::secret(bytes.substr(0, bytes.size() - 1)), "HS256")));
        assert_false(verifier.accepts(
            signed_token(header_of("HS256"), kAlice, Signer::secret(bytes.substr(1)), "HS256")));
    }
}

// In a file of random bytes the last one may be any.
void test_a_newline_belongs_to_a_secret_that_is_no_text(void**) {
    const std::string bytes = "\xff\x80\x01" + std::string(61, 'b') + "\n";
    Verifying verifier;
    assert_added(verifier.keys.add("HS256", bytes, 0));
    assert_true(verifier.accepts(signed_token(header_of("HS256"), kAlice, Signer::secret(bytes), "HS256")));
    assert_false(verifier.accepts(signed_token(header_of("HS256"), kAlice,
                                               Signer::secret(bytes.substr(0, bytes.size() - 1)), "HS256")));
}

void test_a_key_for_pss_alone_is_not_used_otherwise(void**) {
    const Signer signer = Signer::rsa_pss();
    Verifying verifier;
    assert_added(verifier.keys.add("PS256", signer.public_pem(), 0));
    assert_true(verifier.accepts(signed_token(header_of("PS256"), kAlice, signer, "PS256")));
    for (const char* algorithm : {"RS256", "RS384", "RS512"}) {
        assert_refused(algorithm, signer.public_pem(), algorithm);
    }
}

// A public key as secret would allow everyone who knows it to sign.
void test_what_others_may_know_is_no_secret(void**) {
    const std::string pem = rsa_key().public_pem();
    const std::string jwk = rsa_key().jwk();
    for (const char* algorithm : {"HS256", "HS384", "HS512"}) {
        for (const std::string& content :
             {pem, rsa_key().pkcs1_pem(), rsa_key().private_pem(), p256_key().public_pem(),
              ed25519_key().public_pem(), "\n" + pem, "# the key of example.com\n" + pem,
              "\xef\xbb\xbf" + pem, pem.substr(0, pem.size() - 1), jwk, set_of({jwk}), "\n " + set_of({jwk}),
              rsa_key().public_der(), p256_key().public_der(),
              "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5" + std::string(64, 'A'),
              "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTY" + std::string(64, 'A')}) {
            assert_refused(algorithm, content, algorithm);
        }
    }
}

void test_a_pem_file_may_say_more_than_the_key(void**) {
    const std::string pem = rsa_key().public_pem();
    assert_taken("RS256", "# the key of example.com\n" + pem + "\n\n# its end\n");
    assert_taken("RS256", pem.substr(0, pem.size() - 1));
    assert_taken("PS512", rsa_key().pkcs1_pem());
    std::string windows;
    for (const char c : pem) {
        windows += c == '\n' ? "\r\n" : std::string(1, c);
    }
    assert_taken("RS256", windows);
}

void test_a_pem_file_may_hold_several_keys(void**) {
    Verifying verifier;
    assert_added(verifier.keys.add("RS256", rsa_key().public_pem() + other_rsa_key().public_pem(), 0));
    assert_int_equal(verifier.keys.all().size(), 2);
    for (const Signer& signer : {rsa_key(), other_rsa_key()}) {
        assert_true(verifier.accepts(signed_token(header_of("RS256"), kAlice, signer, "RS256")));
        assert_false(verifier.accepts(signed_token(header_of("RS384"), kAlice, signer, "RS384")));
    }
    Verifying edwards;
    assert_added(edwards.keys.add("EdDSA", ed25519_key().public_pem() + "\n" + ed448_key().public_pem(), 0));
    assert_true(edwards.accepts(token_of(kEveryKind[12], kAlice)));
    assert_true(edwards.accepts(token_of(kEveryKind[13], kAlice)));
}

void test_of_several_keys_in_a_pem_file_each_must_fit(void**) {
    assert_refused("RS256", rsa_key().public_pem() + p256_key().public_pem(), "RS256");
    assert_refused("RS256", p256_key().public_pem() + rsa_key().public_pem(), "RS256");
    assert_refused("ES256", p256_key().public_pem() + p384_key().public_pem(), "ES256");
    std::string broken = other_rsa_key().public_pem();
    broken[100] = '!';
    assert_refused("RS256", rsa_key().public_pem() + broken);
    assert_refused("RS256", rsa_key().public_pem() + other_rsa_key().public_pem().substr(0, 200));
}

void test_an_rsa_key_has_at_least_2048_bits(void**) {
    const Signer small = Signer::rsa(1024);
    const Signer nearly = Signer::rsa(2040);
    for (const char* algorithm : {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}) {
        assert_refused(algorithm, small.public_pem(), "2048");
        assert_refused(algorithm, nearly.public_pem(), "2048");
        assert_refused(algorithm, rsa_key().public_pem() + small.public_pem(), "2048");
    }
    assert_taken("RS256", Signer::rsa(3072).public_pem());
}

void test_an_ec_key_is_of_the_curve_of_its_algorithm(void**) {
    const Signer bitcoin = Signer::ec("secp256k1");
    const Signer brainpool = Signer::ec("brainpoolP256r1");
    const Signer p224 = Signer::ec("P-224");
    for (const Signer& signer : {bitcoin, brainpool, p224}) {
        for (const char* algorithm : {"ES256", "ES384", "ES512", "EdDSA"}) {
            assert_refused(algorithm, signer.public_pem());
        }
    }
    assert_refused("ES256", p384_key().public_pem(), "ES256");
    assert_refused("ES384", p256_key().public_pem(), "ES384");
    assert_refused("ES512", p256_key().public_pem(), "ES512");
}

// One of 128 keys of P-256 has such a coordinate, and one of two keys of P-521.
void test_coordinates_that_begin_with_zeros_are_whole(void**) {
    const char* const curves[][2] = {{"P-256", "ES256"}, {"P-521", "ES512"}};
    for (const auto& curve : curves) {
        Signer signer = Signer::ec(curve[0]);
        for (unsigned tries = 0; signer.number("qx")[0] != '\0'; tries++) {
            assert_in_range(tries, 0, 10'000);
            signer = Signer::ec(curve[0]);
        }
        Verifying verifier;
        assert_added(verifier.keys.add(curve[1], signer.public_pem(), 0));
        assert_true(verifier.accepts(signed_token(header_of(curve[1]), kAlice, signer, curve[1])));
        Verifying set(set_of({signer.jwk()}));
        assert_true(set.accepts(signed_token(header_of(curve[1]), kAlice, signer, curve[1])));
    }
}

void test_a_key_that_cannot_sign_is_refused(void**) {
    assert_refused("EdDSA", Signer::of_type("X25519").public_pem(), "EdDSA");
    assert_refused("EdDSA", Signer::of_type("X448").public_pem(), "EdDSA");
}

void test_what_is_no_pem_is_refused(void**) {
    const std::string pem = rsa_key().public_pem();
    const std::string body = pem.substr(pem.find('\n') + 1);
    for (const std::string& content :
         {std::string(), std::string("\n"), std::string("key"), std::string(1000, 'x'),
          std::string("-----BEGIN"), std::string("-----BEGIN PUBLIC KEY-----"),
          std::string("-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n"),
          pem.substr(0, pem.size() / 2), body, std::string(3000, '\0'), rsa_key().jwk(),
          set_of({rsa_key().jwk()}), "-----BEGIN NOTHING-----\n" + body}) {
        for (const char* algorithm : {"RS256", "PS256", "ES256", "EdDSA"}) {
            assert_refused(algorithm, content, "PEM");
        }
    }
}

void test_a_truncated_pem_is_refused_at_every_length(void**) {
    const std::string pem = p256_key().public_pem();
    const std::size_t end = pem.rfind("-----\n");
    for (std::size_t size = 0; size < end; size++) {
        assert_refused("ES256", std::string_view(pem).substr(0, size));
    }
}

// A private key may be accepted or rejected; it is never printed.
void test_a_private_key_verifies_or_is_refused(void**) {
    for (const Kind& kind : kEveryKind) {
        if (kind.symmetric()) {
            continue;
        }
        Verifying verifier;
        const std::string wrong = verifier.keys.add(kind.algorithm, kind.signer().private_pem(), 0);
        assert_int_equal(wrong.empty(), verifier.accepts(token_of(kind, kAlice)));
        assert_int_equal(wrong.empty(), !verifier.keys.all().empty());
    }
}

// nginx would log them for the next TLS connection.
void test_errors_of_openssl_are_not_left_behind(void**) {
    SigningKeys keys;
    std::vector<std::string> ignored;
    keys.add("RS256", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", 0);
    keys.add("ES256", "no key", 0);
    keys.add("ES256", p256_key().public_pem(), 0);
    keys.add("HS256", std::string(64, 's'), 0);
    keys.add_set(set_of({R"({"kty":"EC","crv":"P-256","x":"AAAA","y":"AAAA"})", secret_key().jwk()}), 0,
                 &ignored);
    assert_int_equal(ERR_peek_error(), 0);
}

void test_keys_say_what_they_are_for(void**) {
    SigningKeys keys;
    assert_added(keys.add("RS256", rsa_key().public_pem(), 7));
    assert_int_equal(keys.all().size(), 1);
    assert_int_equal(keys.all()[0].algorithm, JWT_ALG_RS256);
    assert_true(keys.all()[0].id.empty());
    assert_true(keys.all()[0].leeway == 7);
    assert_non_null(keys.all()[0].checker.get());
}

void test_a_fault_leaves_earlier_keys_as_they_are(void**) {
    Verifying verifier({kind_of("RS256")});
    assert_true(!verifier.keys.add("ES256", rsa_key().public_pem(), 0).empty());
    assert_true(!verifier.keys.add("HS256", "short", 0).empty());
    assert_int_equal(verifier.keys.all().size(), 1);
    assert_true(verifier.accepts(token_of(kind_of("RS256"), kAlice)));
}

}  // namespace
}  // namespace rate_limit::identity

int main() {
    using namespace rate_limit::identity;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_there_are_thirteen_algorithms),
        cmocka_unit_test(test_nothing_else_is_an_algorithm),
        cmocka_unit_test(test_every_algorithm_takes_a_key_of_its_own_and_no_other),
        cmocka_unit_test(test_a_secret_has_as_many_bytes_as_its_algorithm_says),
        cmocka_unit_test(test_a_newline_at_the_end_does_not_belong_to_a_secret),
        cmocka_unit_test(test_white_space_and_zeros_belong_to_a_secret),
        cmocka_unit_test(test_a_newline_belongs_to_a_secret_that_is_no_text),
        cmocka_unit_test(test_a_key_for_pss_alone_is_not_used_otherwise),
        cmocka_unit_test(test_what_others_may_know_is_no_secret),
        cmocka_unit_test(test_a_pem_file_may_say_more_than_the_key),
        cmocka_unit_test(test_a_pem_file_may_hold_several_keys),
        cmocka_unit_test(test_of_several_keys_in_a_pem_file_each_must_fit),
        cmocka_unit_test(test_an_rsa_key_has_at_least_2048_bits),
        cmocka_unit_test(test_an_ec_key_is_of_the_curve_of_its_algorithm),
        cmocka_unit_test(test_coordinates_that_begin_with_zeros_are_whole),
        cmocka_unit_test(test_a_key_that_cannot_sign_is_refused),
        cmocka_unit_test(test_what_is_no_pem_is_refused),
        cmocka_unit_test(test_a_truncated_pem_is_refused_at_every_length),
        cmocka_unit_test(test_a_private_key_verifies_or_is_refused),
        cmocka_unit_test(test_errors_of_openssl_are_not_left_behind),
        cmocka_unit_test(test_keys_say_what_they_are_for),
        cmocka_unit_test(test_a_fault_leaves_earlier_keys_as_they_are),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
