// JSON Web Key Sets: which keys are used, for which tokens, and which are ignored with a word.
#include <algorithm>

#include "verifying.h"

namespace rate_limit::identity {
namespace {

std::string token_by(const Signer& signer, const char* algorithm, std::string_view more = "") {
    return signed_token(header_of(algorithm, more), kAlice, signer, algorithm);
}

// A set with one ignored key and one used key.
void assert_ignored(const std::string& jwk) {
    Verifying verifier(set_of({jwk, p256_key().jwk()}));
    if (verifier.ignored.size() != 1 || verifier.keys.all().size() != 1) {
        fail_msg("%zu keys and %zu ignored of %s", verifier.keys.all().size(), verifier.ignored.size(),
                 jwk.c_str());
    }
    assert_true(!verifier.ignored[0].empty());
    assert_true(verifier.ignored[0].find('\n') == std::string::npos);
    assert_true(verifier.accepts(token_by(p256_key(), "ES256")));
    // Nor is it used where it stands alone.
    SigningKeys keys;
    std::vector<std::string> ignored;
    assert_true(!keys.add_set(set_of({jwk}), 0, &ignored).empty());
    assert_true(keys.all().empty());
}

// A set that is rejected.
void assert_refused(std::string_view content) {
    SigningKeys keys;
    std::vector<std::string> ignored;
    const Exact exact(content);
    const std::string wrong = keys.add_set(exact.view(), 0, &ignored);
    if (wrong.empty() || !keys.all().empty()) {
        fail_msg("%.80s is accepted", std::string(content).c_str());
    }
    assert_true(wrong.find('\n') == std::string::npos && wrong.back() != '.');
}

// The kinds of tokens that a verifier accepts, as names.
std::string accepted_kinds(Verifying* verifier, std::string_view more = "") {
    std::string all;
    for (const Kind& kind : kEveryKind) {
        if (verifier->accepts(token_of(kind, kAlice, more))) {
            all += (all.empty() ? "" : " ") + std::string(kind.algorithm);
        }
    }
    return all;
}

void assert_kinds(const std::string& jwk, const char* kinds) {
    Verifying verifier(set_of({jwk}));
    assert_int_equal(verifier.ignored.size(), 0);
    assert_string_equal(accepted_kinds(&verifier).c_str(), kinds);
}

void test_a_key_without_alg_is_used_with_every_algorithm_of_its_type(void**) {
    assert_kinds(secret_key().jwk(), "HS256 HS384 HS512");
    assert_kinds(rsa_key().jwk(), "RS256 RS384 RS512 PS256 PS384 PS512");
    assert_kinds(p256_key().jwk(), "ES256");
    assert_kinds(p384_key().jwk(), "ES384");
    assert_kinds(p521_key().jwk(), "ES512");
    assert_kinds(ed25519_key().jwk(), "EdDSA");
    assert_kinds(ed448_key().jwk(), "EdDSA");
}

void test_a_key_with_alg_is_used_only_with_that(void**) {
    for (const Kind& kind : kEveryKind) {
        assert_kinds(kind.signer().jwk(quoted("alg", kind.algorithm)), kind.algorithm);
    }
}

void test_a_secret_is_used_with_the_algorithms_that_it_is_long_enough_for(void**) {
    const struct {
        std::size_t size;
        bool with[3];
    } cases[] = {{32, {true, false, false}}, {47, {true, false, false}}, {48, {true, true, false}},
                 {63, {true, true, false}},  {64, {true, true, true}},   {100, {true, true, true}}};
    for (const auto& each : cases) {
        const Signer signer = Signer::secret(std::string(each.size, 'k'));
        Verifying verifier(set_of({signer.jwk()}));
        for (unsigned i = 0; i < 3; i++) {
            const char* algorithm = kEveryKind[i].algorithm;
            assert_int_equal(verifier.accepts(token_by(signer, algorithm)), each.with[i]);
        }
    }
}

void test_a_secret_that_is_too_short_is_ignored(void**) {
    for (const std::size_t size : {0U, 1U, 3U, 16U, 31U}) {
        assert_ignored(Signer::secret(std::string(size, 'k')).jwk());
    }
    assert_ignored(Signer::secret(std::string(31, 'k')).jwk(quoted("alg", "HS256")));
    assert_ignored(Signer::secret(std::string(47, 'k')).jwk(quoted("alg", "HS384")));
    assert_ignored(Signer::secret(std::string(63, 'k')).jwk(quoted("alg", "HS512")));
}

void test_a_key_of_another_use_is_ignored(void**) {
    for (const char* more : {R"("use":"enc")", R"("use":"enc","alg":"RSA-OAEP")", R"("key_ops":["encrypt"])",
                             R"("key_ops":["sign"])", R"("key_ops":["wrapKey","unwrapKey"])",
                             R"("key_ops":["deriveKey","deriveBits"])", R"("key_ops":[])",
                             R"("key_ops":"verify")", R"("key_ops":[1,null,["verify"]])", R"("use":1)",
                             R"("use":"")", R"("use":"SIG")", R"("use":"enc","key_ops":["verify"])"}) {
        assert_ignored(rsa_key().jwk(more));
    }
    assert_ignored(secret_key().jwk(R"("use":"enc")"));
    assert_ignored(p384_key().jwk(R"("use":"enc")"));
    assert_ignored(ed25519_key().jwk(R"("use":"enc")"));
}

void test_a_key_that_may_verify_is_used(void**) {
    for (const char* more :
         {R"("use":"sig")", R"("key_ops":["verify"])", R"("key_ops":["sign","verify"])",
          R"("use":"sig","key_ops":["verify"],"alg":"RS256","kid":"1","x5t":"abc","foo":{"a":[1]})"}) {
        Verifying verifier(set_of({rsa_key().jwk(more)}));
        assert_int_equal(verifier.ignored.size(), 0);
        assert_true(verifier.accepts(token_by(rsa_key(), "RS256")));
    }
}

void test_an_unknown_type_is_ignored(void**) {
    for (const char* jwk : {R"({"kty":"XYZ","x":"AAAA"})", R"({"kty":"rsa","n":"AAAA","e":"AQAB"})",
                            R"({"kty":""})", R"({"kty":1})", R"({"kty":null})", R"({"kty":["RSA"]})", R"({})",
                            R"({"kid":"a"})", R"({"kty":"AKP","alg":"ML-DSA-44","pub":"AAAA"})"}) {
        assert_ignored(jwk);
    }
    assert_ignored(Signer::of_type("X25519").jwk());
    assert_ignored(Signer::ec("secp256k1").jwk());
    assert_ignored(Signer::ec("secp256k1").jwk(quoted("alg", "ES256K")));
}

void test_an_alg_of_another_type_is_ignored(void**) {
    for (const char* algorithm :
         {"HS256", "ES256", "EdDSA", "none", "None", "", "RSA-OAEP", "rs256", "RS1", "dir"}) {
        assert_ignored(rsa_key().jwk(quoted("alg", algorithm)));
    }
    for (const char* algorithm : {"RS256", "HS256", "ES384", "ES256K", "ECDH-ES", "EdDSA", "none"}) {
        assert_ignored(p256_key().jwk(quoted("alg", algorithm)));
    }
    for (const char* algorithm : {"RS256", "ES256", "A128KW", "dir", "none", "EdDSA"}) {
        assert_ignored(secret_key().jwk(quoted("alg", algorithm)));
    }
    for (const char* value : {"1", "null", "true", "[\"RS256\"]", "{}"}) {
        assert_ignored(rsa_key().jwk(std::string("\"alg\":") + value));
    }
}

void test_a_faulty_key_is_ignored(void**) {
    const std::string n = base64url(rsa_key().number("n"));
    const std::string x = base64url(p256_key().number("qx"));
    const std::string y = base64url(p256_key().number("qy"));
    const std::string ec = R"({"kty":"EC","crv":"P-256",)";
    const std::string cases[] = {
        R"({"kty":"RSA","n":")" + n + "\"}",
        R"({"kty":"RSA","e":"AQAB"})",
        R"({"kty":"RSA","n":"","e":"AQAB"})",
        R"({"kty":"RSA","n":")" + n + R"(","e":""})",
        R"({"kty":"RSA","n":1,"e":2})",
        R"({"kty":"RSA","n":"!!!!","e":"AQAB"})",
        R"({"kty":"oct"})",
        R"({"kty":"oct","k":""})",
        R"({"kty":"oct","k":7})",
        R"({"kty":"oct","k":"****************************************************"})",
        ec + quoted("x", x) + "}",
        ec + quoted("y", y) + "}",
        ec + quoted("x", x) + "," + quoted("y", x) + "}",
        ec + quoted("x", x) + "," + quoted("y", "AAAA") + "}",
        ec + quoted("x", "") + "," + quoted("y", "") + "}",
        R"({"kty":"EC","crv":"P-384",)" + quoted("x", x) + "," + quoted("y", y) + "}",
        R"({"kty":"EC",)" + quoted("x", x) + "," + quoted("y", y) + "}",
        R"({"kty":"EC","crv":"P-999",)" + quoted("x", x) + "," + quoted("y", y) + "}",
        R"({"kty":"OKP","crv":"Ed25519"})",
        R"({"kty":"OKP","crv":"Ed25519","x":"AAAA"})",
        R"({"kty":"OKP","x":")" + x + "\"}",
        Signer::rsa(1024).jwk(),
    };
    for (const std::string& jwk : cases) {
        assert_ignored(jwk);
    }
}

std::string rsa_jwk(const std::string& n, const std::string& e) {
    return R"({"kty":"RSA",)" + quoted("n", n) + "," + quoted("e", e) + "}";
}

// With 1 every text is its own signature, and no even number has an inverse.
void test_an_exponent_that_makes_forging_easy_is_ignored(void**) {
    const std::string n = base64url(rsa_key().number("n"));
    for (const std::string& e :
         {std::string(), std::string("\0", 1), std::string("\x01"), std::string("\0\x01", 2),
          std::string("\x02"), std::string("\x01\0\x02", 3)}) {
        assert_ignored(rsa_jwk(n, base64url(e)));
    }
    assert_ignored(rsa_jwk(n, "AQ=="));
    Verifying verifier(set_of({rsa_jwk(n, base64url(std::string("\0\x01\0\x01", 4)))}));
    assert_true(verifier.accepts(token_by(rsa_key(), "RS256")));
}

void test_a_secret_that_others_may_know_is_ignored(void**) {
    for (std::string text :
         {rsa_key().public_pem(), p256_key().public_pem(), rsa_key().jwk(), set_of({rsa_key().jwk()})}) {
        assert_ignored(Signer::secret(text).jwk());
        while (text.size() % 3 != 1) {
            text += "\n";
        }
        for (const char* padding : {"", "=", "=="}) {
            assert_ignored(R"({"kty":"oct","k":")" + base64url(text) + padding + "\"}");
        }
    }
}

void test_an_ignored_key_is_told_by_number_and_kid(void**) {
    Verifying verifier(
        set_of({p256_key().jwk(), R"({"kty":"XYZ","kid":"old \"key\"\n"})", R"({"kty":"XYZ"})"}));
    assert_int_equal(verifier.ignored.size(), 2);
    assert_true(verifier.ignored[0].find("key 2") != std::string::npos);
    assert_true(verifier.ignored[0].find("old ?key??") != std::string::npos);
    assert_true(verifier.ignored[1].find("key 3") != std::string::npos);
}

void test_what_is_no_key_at_all_is_ignored(void**) {
    for (const char* jwk : {"1", "null", "\"RSA\"", "[]", "true", "[{}]"}) {
        assert_ignored(jwk);
    }
}

void test_each_ignored_key_is_told_once(void**) {
    Verifying verifier(set_of({R"({"kty":"XYZ"})", p256_key().jwk(), rsa_key().jwk(R"("use":"enc")"),
                               ed25519_key().jwk(), Signer::secret("abc").jwk()}));
    assert_int_equal(verifier.ignored.size(), 3);
    assert_int_equal(verifier.keys.all().size(), 2);
    assert_string_equal(accepted_kinds(&verifier).c_str(), "ES256 EdDSA");
}

void test_a_secret_is_never_told(void**) {
    const Signer secret = Signer::secret("a secret of too few bytes");
    for (const std::string& jwk :
         {secret.jwk(), secret_key().jwk(R"("use":"enc")"), secret_key().jwk(R"("alg":"RS256")")}) {
        SigningKeys keys;
        std::vector<std::string> said;
        said.push_back(keys.add_set(set_of({jwk}), 0, &said));
        for (const std::string& line : said) {
            assert_true(line.find("secret of") == std::string::npos);
            assert_true(line.find(base64url("0123456789")) == std::string::npos);
            assert_true(line.find(base64url("a secret of")) == std::string::npos);
        }
    }
}

void test_a_set_without_a_usable_key_is_an_error(void**) {
    for (const char* content :
         {"", " ", "{", "[]", "null", "1", "\"keys\"", "{}", R"({"keys":[]})", R"({"keys":{}})",
          R"({"keys":null})", R"({"keys":1})", R"({"keys":"x"})", R"({"keys":[{}]})",
          R"({"keys":[{"kty":"XYZ"}]})", "not JSON", R"({"keys":[{"kty":"oct","k":"AAAA"}]})",
          R"({"key":[]})", R"({"SigningKeys":[]})"}) {
        assert_refused(content);
    }
    const std::string good = set_of({rsa_key().jwk()});
    assert_refused(good.substr(0, good.size() - 1));
    assert_refused(good.substr(0, good.size() - 2));
    assert_refused(good + "}");
    assert_refused(good + good);
    assert_refused("x" + good);
    assert_refused(rsa_key().public_pem());
    assert_refused(secret_key().secret_bytes());
    assert_refused(set_of({rsa_key().jwk("\"x5t\":\"\xff\"")}));
    assert_refused(std::string(10000, '['));
}

void test_a_set_may_stand_among_other_members_and_white_space(void**) {
    Verifying verifier(" \n{\"issuer\":\"x\",\"keys\" : [\n" + p256_key().jwk() + " ] }\n");
    assert_true(verifier.accepts(token_by(p256_key(), "ES256")));
}

// A single key instead of a set is used or rejected, never ignored silently.
void test_a_single_key_in_place_of_a_set_is_used_or_refused(void**) {
    Verifying verifier;
    const std::string wrong = verifier.keys.add_set(p256_key().jwk(), 0, &verifier.ignored);
    assert_int_equal(wrong.empty(), verifier.accepts(token_by(p256_key(), "ES256")));
    assert_int_equal(wrong.empty(), !verifier.keys.all().empty());
    assert_refused(p256_key().jwk(R"("use":"enc")"));
}

// The public half of a private key can verify tokens.
void test_a_private_key_verifies_or_is_ignored(void**) {
    for (const Kind& kind : kEveryKind) {
        if (kind.symmetric()) {
            continue;
        }
        Verifying verifier(set_of({kind.signer().private_jwk(), secret_key().jwk()}));
        assert_int_equal(verifier.ignored.empty(), verifier.accepts(token_of(kind, kAlice)));
        for (const std::string& line : verifier.ignored) {
            assert_true(line.find(kind.signer().private_jwk().substr(60, 16)) == std::string::npos);
        }
    }
}

void test_a_key_with_a_kid_is_used_for_tokens_that_name_it_or_none(void**) {
    Verifying verifier(set_of({rsa_key().jwk(quoted("kid", "a")), other_rsa_key().jwk(quoted("kid", "b"))}));
    const Signer* signers[] = {&rsa_key(), &other_rsa_key()};
    const char* kids[] = {R"("kid":"a")", R"("kid":"b")"};
    for (unsigned key = 0; key < 2; key++) {
        for (unsigned kid = 0; kid < 2; kid++) {
            assert_verdict(verifier.of(token_by(*signers[key], "RS256", kids[kid])),
                           key == kid ? TokenVerdict::kValid : TokenVerdict::kForged);
        }
        assert_verdict(verifier.of(token_by(*signers[key], "RS256")), TokenVerdict::kValid);
        for (const char* other : {R"("kid":"c")", R"("kid":"A")", R"("kid":"a ")", R"("kid":"ab")"}) {
            assert_verdict(verifier.of(token_by(*signers[key], "RS256", other)), TokenVerdict::kNoKey);
        }
    }
}

void test_only_the_keys_that_fit_are_computed(void**) {
    Verifying verifier(set_of({rsa_key().jwk(quoted("kid", "a")), other_rsa_key().jwk(quoted("kid", "b"))}));
    verifier.verify(token_by(other_rsa_key(), "RS256", R"("kid":"b")"), kNow);
    assert_int_equal(verifier.computed(), 1);
    verifier.verify(token_by(other_rsa_key(), "RS256", R"("kid":"c")"), kNow);
    assert_int_equal(verifier.computed(), 1);
}

void test_a_key_without_a_kid_is_used_for_every_token(void**) {
    Verifying verifier(set_of({p256_key().jwk(), p384_key().jwk(quoted("kid", "a"))}));
    for (const char* more : {"", R"("kid":"a")", R"("kid":"b")", R"("kid":"")"}) {
        assert_verdict(verifier.of(token_by(p256_key(), "ES256", more)), TokenVerdict::kValid);
    }
    Verifying pem({kind_of("ES256")});
    assert_verdict(pem.of(token_by(p256_key(), "ES256", R"("kid":"whatever")")), TokenVerdict::kValid);
}

void test_two_keys_of_one_kid_are_both_tried(void**) {
    for (const bool swapped : {false, true}) {
        std::vector<std::string> jwks = {rsa_key().jwk(quoted("kid", "a")),
                                         other_rsa_key().jwk(quoted("kid", "a")),
                                         p256_key().jwk(quoted("kid", "a"))};
        if (swapped) {
            std::reverse(jwks.begin(), jwks.end());
        }
        Verifying verifier(set_of(jwks));
        const char* kid = R"("kid":"a")";
        assert_verdict(verifier.of(token_by(rsa_key(), "RS256", kid)), TokenVerdict::kValid);
        assert_verdict(verifier.of(token_by(other_rsa_key(), "PS384", kid)), TokenVerdict::kValid);
        assert_verdict(verifier.of(token_by(p256_key(), "ES256", kid)), TokenVerdict::kValid);
        assert_verdict(verifier.of(token_by(Signer::ec("P-256"), "ES256", kid)), TokenVerdict::kForged);
    }
}

void test_a_kid_of_any_text_is_compared_whole(void**) {
    const std::string kids[] = {
        "\xc3\xa4\xf0\x9f\x98\x80", std::string(3000, 'k'), "a\\\"b", "\\u00e4", "a.b/c d", "*"};
    for (const std::string& kid : kids) {
        Verifying verifier(set_of({p256_key().jwk(quoted("kid", kid))}));
        assert_verdict(verifier.of(token_by(p256_key(), "ES256", quoted("kid", kid))), TokenVerdict::kValid);
        assert_verdict(verifier.of(token_by(p256_key(), "ES256", quoted("kid", kid + "x"))),
                       TokenVerdict::kNoKey);
        assert_verdict(verifier.of(token_by(p256_key(), "ES256", quoted("kid", "\xc3\xa4"))),
                       kid == "\\u00e4" ? TokenVerdict::kValid : TokenVerdict::kNoKey);
    }
}

void test_a_token_whose_kid_is_no_text_is_malformed(void**) {
    Verifying verifier(set_of({p256_key().jwk(quoted("kid", "1")), p384_key().jwk()}));
    for (const char* kid : {"1", "null", "true", "[\"1\"]", "{}"}) {
        const std::string more = std::string("\"kid\":") + kid;
        assert_verdict(verifier.of(token_by(p256_key(), "ES256", more)), TokenVerdict::kMalformed);
        assert_verdict(verifier.of(token_by(p384_key(), "ES384", more)), TokenVerdict::kMalformed);
    }
}

void test_an_algorithm_of_more_keys_than_are_tried_is_named(void**) {
    SigningKeys keys;
    assert_null(keys.crowded(0));
    assert_added(keys.add("ES256", p256_key().public_pem() + Signer::ec("P-256").public_pem(), 0));
    assert_added(keys.add("EdDSA", ed25519_key().public_pem(), 0));
    assert_null(keys.crowded(2));
    assert_string_equal(keys.crowded(1), "ES256");
    std::vector<std::string> ignored;
    assert_added(keys.add_set(set_of({ed448_key().jwk(), Signer::of_type("ED25519").jwk()}), 0, &ignored));
    assert_string_equal(keys.crowded(2), "EdDSA");
    assert_null(keys.crowded(3));
}

void test_a_leeway_belongs_to_its_set(void**) {
    Verifying verifier;
    assert_added(verifier.keys.add_set(set_of({p256_key().jwk()}), 60, &verifier.ignored));
    assert_added(verifier.keys.add_set(set_of({ed25519_key().jwk()}), 0, &verifier.ignored));
    const std::string claims = R"({"exp":1000})";
    assert_verdict(verifier.of(token_of(kind_of("ES256"), claims), 1059), TokenVerdict::kValid);
    assert_verdict(verifier.of(token_of(kind_of("ES256"), claims), 1060), TokenVerdict::kExpired);
    assert_verdict(verifier.of(token_of(kind_of("EdDSA"), claims), 999), TokenVerdict::kValid);
    assert_verdict(verifier.of(token_of(kind_of("EdDSA"), claims), 1000), TokenVerdict::kExpired);
}

// Signers and a set of their keys, named "key 0" and so on.
struct Many {
    std::vector<Signer> signers;
    std::vector<std::string> jwks;

    explicit Many(std::size_t count) {
        for (std::size_t i = 0; i < count; i++) {
            signers.push_back(Signer::of_type("ED25519"));
            jwks.push_back(signers.back().jwk(name(i)));
        }
    }

    static std::string name(std::size_t i) { return quoted("kid", "key " + std::to_string(i)); }
};

void test_of_a_set_of_many_keys_each_is_used_by_its_kid(void**) {
    const Many many(50);
    Verifying verifier(set_of(many.jwks));
    for (std::size_t i = 0; i < 50; i++) {
        assert_true(verifier.accepts(token_by(many.signers[i], "EdDSA", Many::name(i))));
        assert_verdict(verifier.of(token_by(many.signers[i], "EdDSA", Many::name((i + 1) % 50))),
                       TokenVerdict::kForged);
        assert_verdict(verifier.of(token_by(many.signers[i], "EdDSA", Many::name(i + 50))),
                       TokenVerdict::kNoKey);
    }
}

void test_a_token_that_names_no_key_is_tried_with_some_and_not_with_any_number(void**) {
    const Many many(50);
    Verifying verifier(set_of(many.jwks));
    for (std::size_t i = 0; i < 50; i++) {
        const std::uint64_t before = verifier.computed();
        const auto result = verifier.verify(token_by(many.signers[i], "EdDSA"), kNow);
        assert_verdict(result.verdict,
                       i < Verifier::kMostTries ? TokenVerdict::kValid : TokenVerdict::kForged);
        assert_int_equal(verifier.computed() - before, std::min(i + 1, Verifier::kMostTries));
    }
}

}  // namespace
}  // namespace rate_limit::identity

int main() {
    using namespace rate_limit::identity;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_key_without_alg_is_used_with_every_algorithm_of_its_type),
        cmocka_unit_test(test_a_key_with_alg_is_used_only_with_that),
        cmocka_unit_test(test_a_secret_is_used_with_the_algorithms_that_it_is_long_enough_for),
        cmocka_unit_test(test_a_secret_that_is_too_short_is_ignored),
        cmocka_unit_test(test_a_key_of_another_use_is_ignored),
        cmocka_unit_test(test_a_key_that_may_verify_is_used),
        cmocka_unit_test(test_an_unknown_type_is_ignored),
        cmocka_unit_test(test_an_alg_of_another_type_is_ignored),
        cmocka_unit_test(test_a_faulty_key_is_ignored),
        cmocka_unit_test(test_an_exponent_that_makes_forging_easy_is_ignored),
        cmocka_unit_test(test_a_secret_that_others_may_know_is_ignored),
        cmocka_unit_test(test_an_ignored_key_is_told_by_number_and_kid),
        cmocka_unit_test(test_what_is_no_key_at_all_is_ignored),
        cmocka_unit_test(test_each_ignored_key_is_told_once),
        cmocka_unit_test(test_a_secret_is_never_told),
        cmocka_unit_test(test_a_set_without_a_usable_key_is_an_error),
        cmocka_unit_test(test_a_set_may_stand_among_other_members_and_white_space),
        cmocka_unit_test(test_a_single_key_in_place_of_a_set_is_used_or_refused),
        cmocka_unit_test(test_a_private_key_verifies_or_is_ignored),
        cmocka_unit_test(test_a_key_with_a_kid_is_used_for_tokens_that_name_it_or_none),
        cmocka_unit_test(test_only_the_keys_that_fit_are_computed),
        cmocka_unit_test(test_a_key_without_a_kid_is_used_for_every_token),
        cmocka_unit_test(test_two_keys_of_one_kid_are_both_tried),
        cmocka_unit_test(test_a_kid_of_any_text_is_compared_whole),
        cmocka_unit_test(test_a_token_whose_kid_is_no_text_is_malformed),
        cmocka_unit_test(test_an_algorithm_of_more_keys_than_are_tried_is_named),
        cmocka_unit_test(test_a_leeway_belongs_to_its_set),
        cmocka_unit_test(test_of_a_set_of_many_keys_each_is_used_by_its_kid),
        cmocka_unit_test(test_a_token_that_names_no_key_is_tried_with_some_and_not_with_any_number),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
