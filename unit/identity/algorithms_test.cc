// Each algorithm verifies only with its own key, whatever the header of a token says.
#include <openssl/err.h>

#include "verifying.h"

namespace rate_limit::identity {
namespace {

bool same(const Kind& one, const Kind& other) {
    return one.signer == other.signer && std::string_view(one.algorithm) == other.algorithm;
}

// `header` may name another algorithm than that of the signature.
std::string forged(std::string_view header, const Signer& signer, std::string_view algorithm) {
    return signed_token(header, kAlice, signer, algorithm);
}

std::string unsigned_token(std::string_view header, std::string_view signature = "") {
    return base64url(header) + "." + base64url(kAlice) + "." + std::string(signature);
}

void test_every_algorithm_verifies_with_its_own_key_and_no_other(void**) {
    std::vector<std::string> tokens;
    for (const Kind& kind : kEveryKind) {
        tokens.push_back(token_of(kind, kAlice));
    }
    for (const Kind& key : kEveryKind) {
        Verifying verifier({key});
        for (std::size_t i = 0; i < tokens.size(); i++) {
            const Kind& kind = kEveryKind[i];
            const TokenVerdict verdict = verifier.of(tokens[i]);
            const TokenVerdict expected = same(kind, key) ? TokenVerdict::kValid
                                          : std::string_view(kind.algorithm) == key.algorithm
                                              ? TokenVerdict::kForged
                                              : TokenVerdict::kNoKey;
            if (verdict != expected) {
                fail_msg("%s with a key for %s: %s", kind.algorithm, key.algorithm, verdict_text(verdict));
            }
        }
    }
}

void test_every_algorithm_verifies_beside_all_others(void**) {
    Verifying verifier(std::vector<Kind>(std::begin(kEveryKind), std::end(kEveryKind)));
    for (const Kind& kind : kEveryKind) {
        const std::string token = token_of(kind, kAlice);
        assert_verdict(verifier.of(token), TokenVerdict::kValid);
        assert_string_equal(verifier.claim(token, "sub").c_str(), "alice");
    }
}

// Whether a signer can sign by an algorithm at all.
bool can_sign(const Kind& kind, const char* algorithm) {
    const std::string_view families[] = {"HS", "RS PS", "ES", "Ed"};
    for (const std::string_view family : families) {
        if (family.find(std::string_view(kind.algorithm).substr(0, 2)) != std::string_view::npos) {
            return family.find(std::string_view(algorithm).substr(0, 2)) != std::string_view::npos;
        }
    }
    return false;
}

void test_a_header_that_names_another_algorithm_than_it_is_signed_by_is_not_believed(void**) {
    Verifying verifier(std::vector<Kind>(std::begin(kEveryKind), std::end(kEveryKind)));
    for (const Kind& said : kEveryKind) {
        for (const Kind& used : kEveryKind) {
            if (std::string_view(said.algorithm) == used.algorithm) {
                continue;
            }
            const std::string token = forged(header_of(said.algorithm), used.signer(), used.algorithm);
            if (verifier.of(token) != TokenVerdict::kForged) {
                fail_msg("%s signed by %s: %s", said.algorithm, used.algorithm,
                         verdict_text(verifier.of(token)));
            }
            if (can_sign(said, used.algorithm)) {
                assert_verdict(verifier.of(forged(header_of(said.algorithm), said.signer(), used.algorithm)),
                               TokenVerdict::kForged);
            }
        }
    }
}

void test_another_key_of_the_same_type_does_not_verify(void**) {
    const Signer others[] = {Signer::secret(std::string(64, 'x')),
                             other_rsa_key(),
                             Signer::ec("P-256"),
                             Signer::ec("P-384"),
                             Signer::ec("P-521"),
                             Signer::of_type("ED25519"),
                             Signer::of_type("ED448")};
    const unsigned which[] = {0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 3, 4, 5, 6};
    for (std::size_t i = 0; i < std::size(kEveryKind); i++) {
        Verifying verifier({kEveryKind[i]});
        assert_verdict(verifier.of(forged(header_of(kEveryKind[i].algorithm), others[which[i]],
                                          kEveryKind[i].algorithm)),
                       TokenVerdict::kForged);
    }
}

void test_the_text_of_a_public_key_is_no_secret(void**) {
    for (const Kind& kind : kEveryKind) {
        if (kind.symmetric()) {
            continue;
        }
        Verifying pem({kind});
        Verifying set(set_of({kind.signer().jwk()}));
        Verifying both({kind, kEveryKind[0], kEveryKind[1], kEveryKind[2]});
        const std::string text = kind.file();
        const std::string jwk = kind.signer().jwk();
        for (const std::string& secret :
             {text, text.substr(0, text.size() - 1), jwk, set_of({jwk}), std::string("")}) {
            for (const char* algorithm : {"HS256", "HS384", "HS512"}) {
                const std::string token = forged(header_of(algorithm), Signer::secret(secret), algorithm);
                assert_verdict(pem.of(token), TokenVerdict::kNoKey);
                assert_verdict(set.of(token), TokenVerdict::kNoKey);
                assert_verdict(both.of(token), TokenVerdict::kForged);
            }
        }
    }
}

void test_none_is_no_algorithm_in_any_spelling(void**) {
    Verifying verifier(std::vector<Kind>(std::begin(kEveryKind), std::end(kEveryKind)));
    for (unsigned spelling = 0; spelling < 16; spelling++) {
        std::string none = "none";
        for (unsigned i = 0; i < 4; i++) {
            none[i] = static_cast<char>(spelling >> i & 1 ? none[i] - 32 : none[i]);
        }
        const std::string header = header_of(none);
        assert_false(verifier.accepts(unsigned_token(header)));
        assert_verdict(verifier.of(unsigned_token(header, "AAAA")), TokenVerdict::kNoKey);
        assert_verdict(verifier.of(forged(header, secret_key(), "HS256")), TokenVerdict::kNoKey);
        assert_false(verifier.accepts(base64url(header) + "." + base64url(kAlice)));
    }
    Verifying without;
    assert_false(without.accepts(unsigned_token(header_of("none"))));
    assert_verdict(without.of(unsigned_token(header_of("none"), "AAAA")), TokenVerdict::kNoKey);
}

void test_an_alg_that_is_no_name_of_an_algorithm_is_not_believed(void**) {
    Verifying verifier(std::vector<Kind>(std::begin(kEveryKind), std::end(kEveryKind)));
    for (const char* header : {R"({})",
                               R"({"typ":"JWT"})",
                               R"({"alg":256})",
                               R"({"alg":0})",
                               R"({"alg":null})",
                               R"({"alg":true})",
                               R"({"alg":["HS256"]})",
                               R"({"alg":{"alg":"HS256"}})",
                               R"({"alg":""})",
                               R"({"alg":" HS256"})",
                               R"({"alg":"HS256 "})",
                               R"({"alg":"hs256"})",
                               R"({"alg":"Hs256"})",
                               R"({"alg":"HS2560"})",
                               R"({"alg":"HS25"})",
                               R"({"alg":"HS"})",
                               R"({"Alg":"HS256"})",
                               R"({"ALG":"HS256"})",
                               R"({"alg":"ES256K"})",
                               R"({"alg":"dir"})",
                               R"({"algorithm":"HS256"})",
                               R"({"alg":"HS256\u0000"})"}) {
        for (const std::string& token : {unsigned_token(header), forged(header, secret_key(), "HS256")}) {
            const TokenVerdict verdict = verifier.of(token);
            if (verdict != TokenVerdict::kNoKey && verdict != TokenVerdict::kMalformed) {
                fail_msg("%s: %s", header, verdict_text(verdict));
            }
        }
    }
    assert_true(verifier.accepts(forged(R"({"alg":"\u0048S256"})", secret_key(), "HS256")));
}

void test_a_header_that_names_two_algorithms_is_malformed(void**) {
    Verifying verifier(std::vector<Kind>(std::begin(kEveryKind), std::end(kEveryKind)));
    for (const char* header : {R"({"alg":"HS256","alg":"HS256"})", R"({"alg":"none","alg":"HS256"})",
                               R"({"alg":"HS256","alg":"none"})", R"({"alg":"HS256","\u0061lg":"none"})",
                               R"({"alg":"RS256","alg":"HS256"})"}) {
        assert_verdict(verifier.of(forged(header, secret_key(), "HS256")), TokenVerdict::kMalformed);
        assert_verdict(verifier.of(unsigned_token(header)), TokenVerdict::kMalformed);
    }
}

void test_a_signature_that_is_missing_or_of_another_size_is_wrong(void**) {
    for (const Kind& kind : kEveryKind) {
        Verifying verifier({kind});
        const std::string input = base64url(header_of(kind.algorithm)) + "." + base64url(kAlice);
        const std::string signature = kind.signer().sign(kind.algorithm, input);
        assert_true(verifier.accepts(input + "." + base64url(signature)));
        assert_false(verifier.accepts(input + "."));
        for (const std::string& other :
             {std::string(1, '\0'), std::string(signature.size(), '\0'),
              std::string(signature.size(), '\xff'), signature + '\0', '\0' + signature,
              signature + signature, signature.substr(1), signature.substr(0, signature.size() - 1),
              std::string(1, signature[0]), signature.substr(0, signature.size() / 2),
              std::string(4000, 'x')}) {
            assert_verdict(verifier.of(input + "." + base64url(other)), TokenVerdict::kForged);
        }
    }
}

// One signature in 256 starts with a zero, which OpenSSL does not need.
void test_a_pss_signature_without_its_leading_zero_is_wrong(void**) {
    const Kind& kind = kind_of("PS256");
    Verifying verifier({kind});
    const std::string input = base64url(header_of(kind.algorithm)) + "." + base64url(kAlice);
    std::string signature;
    for (unsigned i = 0; i < 10000 && (signature.empty() || signature[0] != '\0'); i++) {
        signature = kind.signer().sign(kind.algorithm, input);
    }
    assert_int_equal(signature[0], 0);
    assert_true(verifier.accepts(input + "." + base64url(signature)));
    assert_verdict(verifier.of(input + "." + base64url(signature.substr(1))), TokenVerdict::kForged);
}

void test_an_ec_signature_is_raw_and_not_der(void**) {
    for (const char* algorithm : {"ES256", "ES384", "ES512"}) {
        const Kind& kind = kind_of(algorithm);
        Verifying verifier({kind});
        const std::string input = base64url(header_of(algorithm)) + "." + base64url(kAlice);
        assert_verdict(verifier.of(input + "." + base64url(kind.signer().sign_as_der(algorithm, input))),
                       TokenVerdict::kForged);
    }
}

void test_an_ec_signature_of_zeros_or_the_order_is_wrong(void**) {
    Verifying verifier({kind_of("ES256")});
    const std::string input = base64url(header_of("ES256")) + "." + base64url(kAlice);
    const std::string order = "\xff\xff\xff\xff" + std::string(4, '\0') + std::string(8, '\xff') +
                              "\xbc\xe6\xfa\xad\xa7\x17\x9e\x84\xf3\xb9\xca\xc2\xfc\x63\x25\x51";
    assert_int_equal(order.size(), 32);
    const std::string zero(32, '\0');
    const std::string one = std::string(31, '\0') + "\x01";
    for (const std::string& r : {zero, one, order}) {
        for (const std::string& s : {zero, one, order}) {
            assert_verdict(verifier.of(input + "." + base64url(r + s)), TokenVerdict::kForged);
        }
    }
}

// Leading zeros of r or s must not be lost: one signature in 128 has some.
void test_every_ec_signature_verifies(void**) {
    Verifying verifier({kind_of("ES256"), kind_of("ES512")});
    for (unsigned i = 0; i < 400; i++) {
        assert_true(verifier.accepts(token_of(kind_of("ES256"), "{\"i\":" + std::to_string(i) + "}")));
    }
    for (unsigned i = 0; i < 20; i++) {
        assert_true(verifier.accepts(token_of(kind_of("ES512"), "{\"i\":" + std::to_string(i) + "}")));
    }
}

void test_an_ec_key_of_another_curve_does_not_verify(void**) {
    Verifying verifier(set_of({p256_key().jwk(), p384_key().jwk(), p521_key().jwk()}));
    const Signer* signers[] = {&p256_key(), &p384_key(), &p521_key()};
    const char* algorithms[] = {"ES256", "ES384", "ES512"};
    for (unsigned signer = 0; signer < 3; signer++) {
        for (unsigned algorithm = 0; algorithm < 3; algorithm++) {
            assert_verdict(verifier.of(forged(header_of(algorithms[algorithm]), *signers[signer],
                                              algorithms[algorithm])),
                           signer == algorithm ? TokenVerdict::kValid : TokenVerdict::kForged);
        }
    }
}

void test_a_pss_signature_verifies_by_pss_alone(void**) {
    Verifying rs({kind_of("RS256")});
    Verifying ps({kind_of("PS256")});
    Verifying any(set_of({rsa_key().jwk()}));
    for (Verifying* verifier : {&rs, &ps, &any}) {
        assert_false(verifier->accepts(forged(header_of("RS256"), rsa_key(), "PS256")));
        assert_false(verifier->accepts(forged(header_of("PS256"), rsa_key(), "RS256")));
    }
    assert_true(any.accepts(token_of(kind_of("RS256"), kAlice)));
    assert_true(any.accepts(token_of(kind_of("PS256"), kAlice)));
}

// nginx would log them for the next TLS connection.
void test_errors_of_openssl_are_not_left_behind(void**) {
    for (const Kind& kind : kEveryKind) {
        Verifying verifier({kind});
        const std::string input = base64url(header_of(kind.algorithm)) + "." + base64url(kAlice) + ".";
        for (const char* signature : {"AAAA", "____", "AAAAAAAA"}) {
            assert_verdict(verifier.of(input + signature), TokenVerdict::kForged);
            assert_int_equal(ERR_peek_error(), 0);
        }
        assert_false(verifier.accepts(input + std::string(342, 'z') + "A"));
        assert_int_equal(ERR_peek_error(), 0);
        assert_true(verifier.accepts(token_of(kind, kAlice)));
        assert_int_equal(ERR_peek_error(), 0);
    }
}

// Of RFC 7515, appendices A.1 to A.3.
constexpr char kRfcSecret[] =
    R"({"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"})";
constexpr char kRfcRsa[] =
    R"({"kty":"RSA","e":"AQAB","n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPM)"
    "EzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-"
    "bSf63kpaSHSXndS5z5rexMdbBYUsLA9e"
    R"(-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2et)"
    R"(hFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ"})";
constexpr char kRfcEc[] = R"({"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",)"
                          R"("y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"})";
constexpr char kRfcClaims[] =
    ".eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.";

void test_the_examples_of_rfc_7515_verify(void**) {
    Verifying verifier(set_of({kRfcSecret, kRfcRsa, kRfcEc}));
    const std::string tokens[] = {
        std::string("eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9") + kRfcClaims +
            "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        std::string("eyJhbGciOiJSUzI1NiJ9") + kRfcClaims +
            "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_"
            "O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZ"
            "cAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_"
            "eSN9383LcOLn6_dO--xi12jzDwusC-e"
            "OkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_"
            "IoypGlUPQGe77Rw",
        std::string("eyJhbGciOiJFUzI1NiJ9") + kRfcClaims +
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
    };
    for (const std::string& token : tokens) {
        assert_verdict(verifier.of(token, 1300819379), TokenVerdict::kValid);
        assert_verdict(verifier.of(token, 1300819380), TokenVerdict::kExpired);
        assert_string_equal(verifier.claim(token, "iss", 1300819379).c_str(), "joe");
        assert_string_equal(verifier.claim(token, "http://example.com/is_root", 1300819379).c_str(), "true");
    }
}

}  // namespace
}  // namespace rate_limit::identity

int main() {
    using namespace rate_limit::identity;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_every_algorithm_verifies_with_its_own_key_and_no_other),
        cmocka_unit_test(test_every_algorithm_verifies_beside_all_others),
        cmocka_unit_test(test_a_header_that_names_another_algorithm_than_it_is_signed_by_is_not_believed),
        cmocka_unit_test(test_another_key_of_the_same_type_does_not_verify),
        cmocka_unit_test(test_the_text_of_a_public_key_is_no_secret),
        cmocka_unit_test(test_none_is_no_algorithm_in_any_spelling),
        cmocka_unit_test(test_an_alg_that_is_no_name_of_an_algorithm_is_not_believed),
        cmocka_unit_test(test_a_header_that_names_two_algorithms_is_malformed),
        cmocka_unit_test(test_a_signature_that_is_missing_or_of_another_size_is_wrong),
        cmocka_unit_test(test_a_pss_signature_without_its_leading_zero_is_wrong),
        cmocka_unit_test(test_an_ec_signature_is_raw_and_not_der),
        cmocka_unit_test(test_an_ec_signature_of_zeros_or_the_order_is_wrong),
        cmocka_unit_test(test_every_ec_signature_verifies),
        cmocka_unit_test(test_an_ec_key_of_another_curve_does_not_verify),
        cmocka_unit_test(test_a_pss_signature_verifies_by_pss_alone),
        cmocka_unit_test(test_errors_of_openssl_are_not_left_behind),
        cmocka_unit_test(test_the_examples_of_rfc_7515_verify),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
