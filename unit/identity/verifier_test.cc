// Which tokens are valid and when, and the verdict on others.
#include "identity/verifier.h"

#include <cstring>

#include "verifying.h"

namespace rate_limit::identity {
namespace {

// Claims that a token is signed with; the verdict on it.
TokenVerdict of_claims(std::string_view claims, double now = kNow, double leeway = 0) {
    Verifying verifier({kEveryKind[0]}, leeway);
    return verifier.of(hs256(claims), now);
}

TokenVerdict of_header(std::string_view header) {
    Verifying verifier({kEveryKind[0]});
    return verifier.of(signed_token(header, kAlice, secret_key(), "HS256"));
}

void test_claims_are_those_that_were_signed(void**) {
    Verifying verifier({kEveryKind[0]});
    const std::string token = hs256(R"({"sub":"alice","n":42,"realm":{"tenant":"acme"},"\u00e4":"\u00f6"})");
    assert_verdict(verifier.of(token), TokenVerdict::kValid);
    assert_string_equal(verifier.claim(token, "sub").c_str(), "alice");
    assert_string_equal(verifier.claim(token, "n").c_str(), "42");
    assert_string_equal(verifier.claim(token, "realm.tenant").c_str(), "acme");
    assert_string_equal(verifier.claim(token, "\xc3\xa4").c_str(), "\xc3\xb6");
    assert_string_equal(verifier.claim(token, "exp").c_str(), "");
}

void test_a_token_needs_no_claim_at_all(void**) { assert_verdict(of_claims("{}"), TokenVerdict::kValid); }

void test_other_members_of_a_header_do_not_matter(void**) {
    for (const char* more :
         {R"("typ":"JWT")", R"("typ":"at+jwt","cty":"x","x5t":"y","jku":"https://evil.example/")",
          R"("typ":7)", R"("jwk":{"kty":"oct","k":"AAAA"})", R"("x":{"y":[{"z":1}]})"}) {
        assert_verdict(of_header(header_of("HS256", more)), TokenVerdict::kValid);
    }
}

void test_a_key_inside_a_token_is_not_used(void**) {
    const Signer stranger = Signer::secret(std::string(64, 'x'));
    Verifying verifier({kEveryKind[0]});
    const std::string header = header_of("HS256", "\"jwk\":" + stranger.jwk());
    assert_verdict(verifier.of(signed_token(header, kAlice, stranger, "HS256")), TokenVerdict::kForged);
}

void test_a_header_with_crit_is_not_valid(void**) {
    for (const char* crit :
         {R"(["exp"])", R"(["b64"],"b64":false)", "[]", "null", "{}", "1", R"("exp")", "false"}) {
        assert_verdict(of_header(header_of("HS256", std::string("\"crit\":") + crit)),
                       TokenVerdict::kCritical);
    }
    assert_verdict(of_header(header_of("HS256", R"("x":{"crit":["exp"]})")), TokenVerdict::kValid);
}

void test_a_token_expires_at_the_second_that_it_says(void**) {
    const std::string claims = R"({"exp":1000})";
    assert_verdict(of_claims(claims, 0), TokenVerdict::kValid);
    assert_verdict(of_claims(claims, 999), TokenVerdict::kValid);
    assert_verdict(of_claims(claims, 999.999), TokenVerdict::kValid);
    assert_verdict(of_claims(claims, 1000), TokenVerdict::kExpired);
    assert_verdict(of_claims(claims, 1000.001), TokenVerdict::kExpired);
    assert_verdict(of_claims(claims, 4e9), TokenVerdict::kExpired);
}

void test_a_token_is_valid_from_the_second_that_it_says(void**) {
    const std::string claims = R"({"nbf":1000})";
    assert_verdict(of_claims(claims, 0), TokenVerdict::kNotYetValid);
    assert_verdict(of_claims(claims, 999), TokenVerdict::kNotYetValid);
    assert_verdict(of_claims(claims, 999.999), TokenVerdict::kNotYetValid);
    assert_verdict(of_claims(claims, 1000), TokenVerdict::kValid);
    assert_verdict(of_claims(claims, 4e9), TokenVerdict::kValid);
}

void test_a_leeway_moves_both_ends(void**) {
    const std::string claims = R"({"nbf":1000,"exp":2000})";
    assert_verdict(of_claims(claims, 989.9, 10), TokenVerdict::kNotYetValid);
    assert_verdict(of_claims(claims, 990, 10), TokenVerdict::kValid);
    assert_verdict(of_claims(claims, 2009.9, 10), TokenVerdict::kValid);
    assert_verdict(of_claims(claims, 2010, 10), TokenVerdict::kExpired);
    assert_verdict(of_claims(claims, 2000 + 86399, 86400), TokenVerdict::kValid);
    assert_verdict(of_claims(claims, 2000 + 86400, 86400), TokenVerdict::kExpired);
    assert_verdict(of_claims(claims, 1999, 0.5), TokenVerdict::kValid);
    assert_verdict(of_claims(claims, 2000.5, 0.5), TokenVerdict::kExpired);
}

void test_times_may_have_fractions(void**) {
    const std::string claims = R"({"nbf":1000.25,"exp":2000.5})";
    assert_verdict(of_claims(claims, 1000), TokenVerdict::kNotYetValid);
    assert_verdict(of_claims(claims, 1000.25), TokenVerdict::kValid);
    assert_verdict(of_claims(claims, 2000.25), TokenVerdict::kValid);
    assert_verdict(of_claims(claims, 2000.5), TokenVerdict::kExpired);
    assert_verdict(of_claims(R"({"exp":1e3})", 999), TokenVerdict::kValid);
    assert_verdict(of_claims(R"({"exp":1e3})", 1000), TokenVerdict::kExpired);
}

void test_times_may_be_negative_or_zero(void**) {
    for (const char* exp : {"0", "-1", "-0", "-9223372036854775808", "-1e300", "-0.0", "0.0"}) {
        assert_verdict(of_claims(std::string("{\"exp\":") + exp + "}"), TokenVerdict::kExpired);
    }
    for (const char* nbf : {"0", "-1", "-9223372036854775808", "-1e300"}) {
        assert_verdict(of_claims(std::string("{\"nbf\":") + nbf + "}"), TokenVerdict::kValid);
    }
    assert_verdict(of_claims(R"({"exp":0})", -1), TokenVerdict::kValid);
}

void test_times_may_be_huge(void**) {
    for (const char* time :
         {"9223372036854775807", "1e300", "1.7976931348623157e308", "4294967296", "9007199254740993"}) {
        assert_verdict(of_claims(std::string("{\"exp\":") + time + "}"), TokenVerdict::kValid);
        assert_verdict(of_claims(std::string("{\"nbf\":") + time + "}"), TokenVerdict::kNotYetValid);
        assert_verdict(of_claims(std::string("{\"exp\":") + time + "}", kNow, 86400), TokenVerdict::kValid);
        assert_verdict(of_claims(std::string("{\"nbf\":") + time + "}", kNow, 86400),
                       TokenVerdict::kNotYetValid);
    }
    for (const char* time : {"1e400", "-1e400", "9223372036854775808", "99999999999999999999999999"}) {
        assert_true(of_claims(std::string("{\"nbf\":") + time + "}") != TokenVerdict::kValid ||
                    time == std::string("-1e400"));
    }
}

void test_times_that_are_no_numbers_are_not_believed(void**) {
    for (const char* name : {"exp", "nbf"}) {
        for (const char* value : {"\"2000000000\"", "\"\"", "null", "true", "false", "[]", "{}",
                                  "[2000000000]", "{\"a\":1}", "\"never\""}) {
            assert_verdict(of_claims(std::string("{\"") + name + "\":" + value + "}"),
                           TokenVerdict::kBadClaims);
        }
    }
    assert_verdict(of_claims(R"({"EXP":"x","Nbf":null,"iat":"x","a":{"exp":"x"}})"), TokenVerdict::kValid);
}

void test_a_time_of_issue_in_the_future_does_not_matter(void**) {
    assert_verdict(of_claims(R"({"iat":2000000000})"), TokenVerdict::kValid);
}

void test_the_machines_own_clock_does_not_matter(void**) {
    assert_verdict(of_claims(R"({"nbf":100,"exp":200})", 150), TokenVerdict::kValid);
    assert_verdict(of_claims(R"({"nbf":9000000000,"exp":9000000100})", 9000000050), TokenVerdict::kValid);
}

void test_a_forged_token_is_not_told_to_have_expired(void**) {
    Verifying verifier({kEveryKind[0]});
    const Signer stranger = Signer::secret(std::string(64, 'x'));
    for (const char* claims : {R"({"exp":1})", R"({"nbf":9e9})", R"({"exp":1,"nbf":9e9})"}) {
        const std::string token = signed_token(header_of("HS256"), claims, stranger, "HS256");
        assert_verdict(verifier.of(token), TokenVerdict::kForged);
    }
    for (const char* claims : {R"({"exp":"x"})", "[]", "", R"({"a":1,"a":2})"}) {
        assert_false(verifier.accepts(signed_token(header_of("HS256"), claims, stranger, "HS256")));
    }
}

void test_claims_that_are_no_object_are_not_believed(void**) {
    for (const char* claims : {"[]", "[{\"sub\":\"alice\"}]", "\"alice\"", "1", "null", "true", "{", "{}}",
                               "{}{}", "{\"sub\":\"alice\"", "sub=alice", "{'sub':'alice'}", "{\"sub\":}"}) {
        assert_verdict(of_claims(claims), TokenVerdict::kBadClaims);
    }
    assert_false(of_claims("") == TokenVerdict::kValid);
}

void test_claims_that_are_not_utf8_are_not_believed(void**) {
    for (const char* claims : {"{\"sub\":\"\xff\"}", "{\"sub\":\"\xc3\"}", "{\"\xe4\":1}",
                               "{\"sub\":\"\xed\xa0\x80\"}", "{\"sub\":\"\\ud800\"}", "\xef\xbb\xbf{}"}) {
        assert_verdict(of_claims(claims), TokenVerdict::kBadClaims);
    }
    const std::string wide = std::string("{\0\"\0a\0\"\0:\0", 10) + std::string("1\0}\0", 4);
    assert_verdict(of_claims(wide), TokenVerdict::kBadClaims);
}

void test_a_nul_in_a_claim_does_not_end_it(void**) {
    Verifying verifier({kEveryKind[0]});
    const std::string token = hs256(R"({"sub":"alice\u0000bob"})");
    const std::string sub = verifier.claim(token, "sub");
    assert_true(sub.empty() || sub == std::string("alice\0bob", 9));
    assert_false(verifier.accepts(hs256(std::string("{\"sub\":\"alice\0\"}", 16))));
}

void test_claims_with_a_name_twice_are_not_believed(void**) {
    for (const char* claims : {R"({"sub":"alice","sub":"bob"})", R"({"sub":"alice","sub":"alice"})",
                               R"({"exp":1,"exp":2000000000})", R"({"a":{"b":1,"b":2}})",
                               R"({"a":[1,{"b":[{"c":1,"c":1}]}]})", R"({"sub":"alice","s\u0075b":"bob"})"}) {
        assert_verdict(of_claims(claims), TokenVerdict::kBadClaims);
    }
    assert_verdict(of_claims(R"({"a":{"a":{"a":1}},"A":1,"b":[{"a":1},{"a":1}]})"), TokenVerdict::kValid);
}

void test_a_header_that_is_no_object_is_malformed(void**) {
    for (const char* header :
         {"[]", "\"HS256\"", "1", "null", "{", "{}}", "", R"({"alg":"HS256"} x)", R"({"alg":"HS256")",
          R"(["alg","HS256"])", "{\"alg\":\"HS256\",\"kid\":\"\xff\"}",
          R"({"alg":"HS256","kid":"a","kid":"a"})", R"({"alg":"HS256","x":{"a":1,"a":1}})",
          R"({"alg":"HS256","crit":[],"crit":[]})", R"({"alg":"HS256",})"}) {
        assert_verdict(of_header(header), TokenVerdict::kMalformed);
    }
}

void test_a_token_has_three_parts(void**) {
    Verifying verifier({kEveryKind[0]});
    const std::string token = hs256(kAlice);
    const std::size_t first = token.find('.');
    const std::size_t second = token.rfind('.');
    for (const std::string& text :
         {std::string(), std::string("."), std::string(".."), std::string("..."), std::string("a"),
          std::string("a.b"), std::string("a.b.c"), token.substr(0, first), token.substr(0, second),
          token + ".", "." + token, token + ".a", token + ".a.b",
          token.substr(0, first) + token.substr(second), token.substr(first), token.substr(first + 1),
          token.substr(0, second) + "." + token.substr(second), token + token}) {
        assert_verdict(verifier.of(text), TokenVerdict::kMalformed);
    }
    assert_true(verifier.accepts(token));
}

void test_a_token_is_base64url(void**) {
    Verifying verifier({kEveryKind[0]});
    const std::string token = hs256(R"({"sub":"alice>>>???"})");
    assert_true(verifier.accepts(token));
    for (const std::string& text :
         {" " + token, token + " ", token + "\n", "\t" + token, token + "=", token + "==", "Bearer " + token,
          token + std::string(1, '\0'), "\"" + token + "\""}) {
        assert_verdict(verifier.of(text), TokenVerdict::kMalformed);
    }
    for (std::size_t i = 0; i < token.size(); i++) {
        for (const char c : {'+', '/', '=', ' ', '\n', '\0', '%', '\xff', ',', '~'}) {
            std::string text = token;
            text[i] = c;
            assert_verdict(verifier.of(text), TokenVerdict::kMalformed);
        }
        std::string text = token;
        text.insert(i, "\n");
        assert_verdict(verifier.of(text), TokenVerdict::kMalformed);
    }
}

void test_a_truncated_token_is_not_valid_at_any_length(void**) {
    for (const Kind& kind : {kind_of("HS256"), kind_of("ES256"), kind_of("EdDSA")}) {
        Verifying verifier({kind});
        const std::string token = token_of(kind, kAlice);
        for (std::size_t size = 0; size < token.size(); size++) {
            assert_false(verifier.accepts(token.substr(0, size)));
            assert_false(verifier.accepts(token.substr(token.size() - size)));
        }
        assert_true(verifier.accepts(token));
    }
}

// Unused bits of the last character may differ, except in the signed text.
void test_a_token_with_any_bit_changed_has_no_other_claims(void**) {
    for (const Kind& kind : {kind_of("HS256"), kind_of("HS384"), kind_of("RS256"), kind_of("PS512"),
                             kind_of("ES256"), kind_of("ES512"), kind_of("EdDSA"), kEveryKind[13]}) {
        Verifying verifier({kind});
        const std::string token = token_of(kind, R"({"sub":"alice","exp":2000000000})");
        for (std::size_t i = 0; i < token.size(); i++) {
            for (unsigned bit = 0; bit < 8; bit++) {
                std::string changed = token;
                changed[i] = static_cast<char>(changed[i] ^ 1 << bit);
                const auto result = verifier.verify(changed, kNow);
                if (result.verdict == TokenVerdict::kValid) {
                    assert_int_equal(i, token.size() - 1);
                    assert_string_equal(verifier.claim(changed, "sub").c_str(), "alice");
                }
            }
        }
        assert_true(verifier.accepts(token));
    }
}

void test_parts_of_two_tokens_do_not_make_a_third(void**) {
    Verifying verifier({kEveryKind[0], kEveryKind[1]});
    const std::string tokens[] = {hs256(kAlice), hs256(R"({"sub":"bob"})"), hs256(kAlice, R"("typ":"JWT")"),
                                  token_of(kEveryKind[1], kAlice)};
    for (const std::string& one : tokens) {
        for (const std::string& other : tokens) {
            const std::string signature = other.substr(other.rfind('.'));
            assert_int_equal(verifier.accepts(one.substr(0, one.rfind('.')) + signature), one == other);
            const std::string mixed = one.substr(0, one.find('.')) + other.substr(other.find('.'));
            assert_int_equal(verifier.accepts(mixed), mixed == one || mixed == other);
        }
    }
}

// A token of exactly so many bytes, by filling its header and its claims.
std::string token_of_size(std::size_t size) {
    for (std::size_t typ = 0; typ < 3; typ++) {
        const std::string more = quoted("typ", std::string(typ, 't'));
        const std::size_t rest = hs256(R"({"sub":"alice","x":""})", more).size();
        for (std::size_t fill = (size - rest) * 3 / 4 - 4; fill < (size - rest) * 3 / 4 + 4; fill++) {
            const std::string token =
                hs256(R"({"sub":"alice",)" + quoted("x", std::string(fill, 'x')) + "}", more);
            if (token.size() == size) {
                return token;
            }
        }
    }
    fail_msg("no token of %zu bytes", size);
    return "";
}

void test_a_token_of_16384_bytes_is_read_and_one_more_is_not(void**) {
    static_assert(kLongestToken == 16384);
    Verifying verifier({kEveryKind[0]});
    assert_verdict(verifier.of(token_of_size(16383)), TokenVerdict::kValid);
    assert_verdict(verifier.of(token_of_size(16384)), TokenVerdict::kValid);
    assert_string_equal(verifier.claim(token_of_size(16384), "sub").c_str(), "alice");
    assert_verdict(verifier.of(token_of_size(16385)), TokenVerdict::kTooLong);
    assert_verdict(verifier.of(std::string(16385, 'a')), TokenVerdict::kTooLong);
    assert_verdict(verifier.of(std::string(1 << 20, '.')), TokenVerdict::kTooLong);
    assert_verdict(verifier.of(std::string(16384, 'a')), TokenVerdict::kMalformed);
    assert_verdict(verifier.of(std::string(16384, '.')), TokenVerdict::kMalformed);
    assert_verdict(verifier.of(std::string(16382, 'a') + ".."), TokenVerdict::kMalformed);
    assert_verdict(verifier.of(".." + std::string(16382, 'a')), TokenVerdict::kMalformed);
}

void test_a_long_part_of_any_kind_is_harmless(void**) {
    Verifying verifier({kEveryKind[0]});
    const std::string header = base64url(header_of("HS256"));
    const std::string claims = base64url(kAlice);
    assert_verdict(verifier.of(header + "." + claims + "." + std::string(16000, 'A')), TokenVerdict::kForged);
    assert_verdict(verifier.of(header + "." + std::string(16000, 'A') + ".AAAA"), TokenVerdict::kBadClaims);
    assert_verdict(verifier.of(std::string(16000, 'A') + "." + claims + ".AAAA"), TokenVerdict::kMalformed);
    assert_verdict(of_header(header_of("HS256", quoted("typ", std::string(12000, 't')))),
                   TokenVerdict::kValid);
}

void test_deep_claims_are_harmless(void**) {
    for (const std::size_t depth : {100U, 1000U, 2000U, 4000U, 6000U}) {
        const std::string arrays = "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
        const TokenVerdict verdict = of_claims(arrays);
        assert_true(verdict == TokenVerdict::kValid || verdict == TokenVerdict::kBadClaims);
        assert_true(depth > 1000 || verdict == TokenVerdict::kValid);
        const TokenVerdict open = of_claims("{\"a\":" + std::string(depth, '['));
        assert_verdict(open, TokenVerdict::kBadClaims);
    }
    std::string objects = "1";
    for (unsigned i = 0; i < 2000; i++) {
        objects = "{\"\":" + objects + "}";
    }
    const TokenVerdict verdict = of_claims("{\"a\":" + objects + "}");
    assert_true(verdict == TokenVerdict::kValid || verdict == TokenVerdict::kBadClaims);
    assert_verdict(of_header(header_of("HS256", "\"x\":" + std::string(3000, '['))),
                   TokenVerdict::kMalformed);
}

void test_without_keys_no_token_is_valid(void**) {
    Verifying verifier;
    for (const Kind& kind : kEveryKind) {
        assert_verdict(verifier.of(token_of(kind, kAlice)), TokenVerdict::kNoKey);
    }
}

void test_a_token_verifies_by_any_of_several_keys(void**) {
    Verifying verifier;
    const Signer old_secret = Signer::secret(std::string(64, 'o'));
    assert_added(verifier.keys.add("HS256", old_secret.secret_bytes(), 0));
    assert_added(verifier.keys.add("HS256", secret_key().secret_bytes(), 100));
    const std::string claims = R"({"exp":1000})";
    const std::string old_token = signed_token(header_of("HS256"), claims, old_secret, "HS256");
    assert_verdict(verifier.of(old_token, 999), TokenVerdict::kValid);
    assert_verdict(verifier.of(hs256(claims), 999), TokenVerdict::kValid);
    // Each with the leeway of its own key.
    assert_verdict(verifier.of(old_token, 1000), TokenVerdict::kExpired);
    assert_verdict(verifier.of(hs256(claims), 1099), TokenVerdict::kValid);
    assert_verdict(verifier.of(hs256(claims), 1100), TokenVerdict::kExpired);
}

void test_every_verdict_has_the_words_that_the_log_promises(void**) {
    const struct {
        TokenVerdict verdict;
        const char* text;
    } cases[] = {
        {TokenVerdict::kTooLong, "it is longer than 16384 bytes"},
        {TokenVerdict::kMalformed, "it is malformed"},
        {TokenVerdict::kCritical, "its header has \"crit\""},
        {TokenVerdict::kNoKey, "there is no key for its algorithm and key id"},
        {TokenVerdict::kForged, "its signature is wrong"},
        {TokenVerdict::kBadClaims, "its claims are malformed"},
        {TokenVerdict::kExpired, "it has expired"},
        {TokenVerdict::kNotYetValid, "it is not valid yet"},
    };
    for (const auto& each : cases) {
        assert_string_equal(verdict_text(each.verdict), each.text);
    }
    assert_true(std::strlen(verdict_text(TokenVerdict::kValid)) > 0);
}

}  // namespace
}  // namespace rate_limit::identity

int main() {
    using namespace rate_limit::identity;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_claims_are_those_that_were_signed),
        cmocka_unit_test(test_a_token_needs_no_claim_at_all),
        cmocka_unit_test(test_other_members_of_a_header_do_not_matter),
        cmocka_unit_test(test_a_key_inside_a_token_is_not_used),
        cmocka_unit_test(test_a_header_with_crit_is_not_valid),
        cmocka_unit_test(test_a_token_expires_at_the_second_that_it_says),
        cmocka_unit_test(test_a_token_is_valid_from_the_second_that_it_says),
        cmocka_unit_test(test_a_leeway_moves_both_ends),
        cmocka_unit_test(test_times_may_have_fractions),
        cmocka_unit_test(test_times_may_be_negative_or_zero),
        cmocka_unit_test(test_times_may_be_huge),
        cmocka_unit_test(test_times_that_are_no_numbers_are_not_believed),
        cmocka_unit_test(test_a_time_of_issue_in_the_future_does_not_matter),
        cmocka_unit_test(test_the_machines_own_clock_does_not_matter),
        cmocka_unit_test(test_a_forged_token_is_not_told_to_have_expired),
        cmocka_unit_test(test_claims_that_are_no_object_are_not_believed),
        cmocka_unit_test(test_claims_that_are_not_utf8_are_not_believed),
        cmocka_unit_test(test_a_nul_in_a_claim_does_not_end_it),
        cmocka_unit_test(test_claims_with_a_name_twice_are_not_believed),
        cmocka_unit_test(test_a_header_that_is_no_object_is_malformed),
        cmocka_unit_test(test_a_token_has_three_parts),
        cmocka_unit_test(test_a_token_is_base64url),
        cmocka_unit_test(test_a_truncated_token_is_not_valid_at_any_length),
        cmocka_unit_test(test_a_token_with_any_bit_changed_has_no_other_claims),
        cmocka_unit_test(test_parts_of_two_tokens_do_not_make_a_third),
        cmocka_unit_test(test_a_token_of_16384_bytes_is_read_and_one_more_is_not),
        cmocka_unit_test(test_a_long_part_of_any_kind_is_harmless),
        cmocka_unit_test(test_deep_claims_are_harmless),
        cmocka_unit_test(test_without_keys_no_token_is_valid),
        cmocka_unit_test(test_a_token_verifies_by_any_of_several_keys),
        cmocka_unit_test(test_every_verdict_has_the_words_that_the_log_promises),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
