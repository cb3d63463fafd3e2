// Remembered tokens: computed once, compared with the clock each time, and bounded.
#include <malloc.h>

#include <atomic>
#include <cstdlib>

#include "verifying.h"

namespace {

std::atomic<unsigned long> allocations{0};

}  // namespace

// Under a sanitizer the heap is its own, and nothing is counted.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCounted = false;
#else
constexpr bool kCounted = true;
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* old, std::size_t size);

void* malloc(std::size_t size) {
    allocations++;
    return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
    allocations++;
    return __libc_calloc(count, size);
}
void* realloc(void* old, std::size_t size) {
    allocations++;
    return __libc_realloc(old, size);
}
}
#endif

namespace rate_limit::identity {
namespace {

constexpr std::size_t kMost = TokenCache::kMostTokens;

std::string numbered(std::size_t number, std::size_t fill = 0) {
    return hs256(R"({"sub":"client )" + std::to_string(number) + "\"," + quoted("x", std::string(fill, 'x')) +
                 "}");
}

std::string numbered_sub(std::size_t number) { return "client " + std::to_string(number); }

// Verifies it once; whether its signature was computed.
bool computes(Verifying* verifier, const std::string& token, double now = kNow) {
    const std::uint64_t before = verifier->computed();
    assert_verdict(verifier->verify(token, now).verdict, TokenVerdict::kValid);
    assert_in_range(verifier->computed() - before, 0, 1);
    return verifier->computed() != before;
}

void test_a_signature_is_computed_once(void**) {
    for (const Kind& kind : kEveryKind) {
        Verifying verifier({kind});
        const std::string token = token_of(kind, kAlice);
        assert_true(computes(&verifier, token));
        for (unsigned i = 0; i < 100; i++) {
            assert_false(computes(&verifier, token, kNow + i * 1e6));
            assert_string_equal(verifier.claim(token, "sub").c_str(), "alice");
        }
        assert_int_equal(verifier.computed(), 1);
    }
}

void test_a_remembered_token_is_the_same_text_wherever_it_stands(void**) {
    Verifying verifier({kEveryKind[0]});
    const std::string token = hs256(kAlice);
    assert_true(computes(&verifier, token));
    const std::string padded = "Bearer " + token + "; and more";
    const auto result = verifier.verify(std::string_view(padded).substr(7, token.size()), kNow);
    assert_verdict(result.verdict, TokenVerdict::kValid);
    assert_int_equal(verifier.computed(), 1);
}

void test_a_token_that_resembles_a_remembered_one_is_not_it(void**) {
    Verifying verifier({kEveryKind[0]});
    const std::string token = hs256(kAlice);
    assert_true(computes(&verifier, token));
    for (std::size_t i = 0; i + 1 < token.size(); i++) {
        std::string changed = token;
        changed[i] = changed[i] == 'A' ? 'B' : 'A';
        assert_true(changed == token || verifier.of(changed) != TokenVerdict::kValid);
    }
    assert_false(verifier.accepts(token + "A"));
    assert_false(verifier.accepts(token.substr(0, token.size() - 1)));
    assert_false(verifier.accepts(token + std::string(1, '\0')));
}

void test_times_are_compared_at_each_use(void**) {
    for (const double leeway : {0.0, 30.0}) {
        Verifying verifier({kEveryKind[0]}, leeway);
        const std::string token = hs256(R"({"nbf":1000,"exp":2000})");
        assert_true(computes(&verifier, token, 1500));
        assert_false(computes(&verifier, token, 1000 - leeway));
        assert_false(computes(&verifier, token, 1999.5 + leeway));
        assert_verdict(verifier.of(token, 999.5 - leeway), TokenVerdict::kNotYetValid);
        assert_false(computes(&verifier, token, 1500));
        const std::uint64_t before = verifier.computed();
        assert_verdict(verifier.of(token, 2000 + leeway), TokenVerdict::kExpired);
        assert_verdict(verifier.of(token, 9e9), TokenVerdict::kExpired);
        assert_true(verifier.computed() - before <= 4);
    }
}

void test_a_remembered_token_expires_without_its_signature_being_computed(void**) {
    Verifying verifier({kEveryKind[0]});
    const std::string token = hs256(R"({"exp":2000})");
    assert_true(computes(&verifier, token, 1000));
    assert_verdict(verifier.verify(token, 2000).verdict, TokenVerdict::kExpired);
    assert_int_equal(verifier.computed(), 1);
}

void test_a_clock_that_is_set_back_makes_a_token_valid_again(void**) {
    Verifying verifier({kEveryKind[0]});
    const std::string token = hs256(R"({"sub":"alice","exp":2000})");
    assert_verdict(verifier.of(token, 1000), TokenVerdict::kValid);
    assert_verdict(verifier.of(token, 2000), TokenVerdict::kExpired);
    assert_verdict(verifier.of(token, 1999), TokenVerdict::kValid);
    assert_string_equal(verifier.claim(token, "sub", 1999).c_str(), "alice");
}

void test_a_token_that_comes_too_early_is_valid_later(void**) {
    Verifying verifier({kEveryKind[0]});
    const std::string token = hs256(R"({"sub":"alice","nbf":2000})");
    assert_verdict(verifier.of(token, 1999), TokenVerdict::kNotYetValid);
    assert_verdict(verifier.of(token, 2000), TokenVerdict::kValid);
    assert_verdict(verifier.of(token, 1999), TokenVerdict::kNotYetValid);
    assert_true(verifier.computed() <= 4);
}

void test_tokens_that_are_not_valid_are_not_remembered(void**) {
    Verifying verifier({kEveryKind[0]});
    const Signer stranger = Signer::secret(std::string(64, 'x'));
    const std::string good = hs256(kAlice);
    const std::string wrong = signed_token(header_of("HS256"), kAlice, stranger, "HS256");
    assert_true(computes(&verifier, good));
    for (std::uint64_t i = 0; i < 10; i++) {
        assert_verdict(verifier.verify(wrong, kNow).verdict, TokenVerdict::kForged);
        assert_int_equal(verifier.computed(), 2 + i);
    }
    for (std::size_t i = 0; i < 2 * kMost; i++) {
        const std::string claims = "{\"i\":" + std::to_string(i) + "}";
        assert_verdict(
            verifier.verify(signed_token(header_of("HS256"), claims, stranger, "HS256"), kNow).verdict,
            TokenVerdict::kForged);
    }
    assert_false(computes(&verifier, good));
}

void test_what_has_no_key_or_no_form_costs_no_signature(void**) {
    Verifying verifier({kEveryKind[0]});
    for (const std::string& token : {std::string("a.b.c"), std::string(20000, 'a'),
                                     token_of(kEveryKind[3], kAlice), hs256(kAlice, R"("crit":["exp"])"),
                                     base64url(header_of("none")) + "." + base64url(kAlice) + ".AAAA"}) {
        verifier.of(token);
    }
    assert_int_equal(verifier.computed(), 0);
}

void test_no_more_than_4096_tokens_are_remembered_and_all_stay_right(void**) {
    static_assert(kMost == 4096);
    Verifying verifier({kEveryKind[0]});
    constexpr std::size_t kMany = 3 * kMost;
    std::vector<std::string> tokens;
    for (std::size_t i = 0; i < kMany; i++) {
        tokens.push_back(numbered(i));
        assert_true(computes(&verifier, tokens[i]));
    }
    std::size_t known = 0;
    for (std::size_t i = kMany; i-- > 0;) {
        const std::uint64_t before = verifier.computed();
        assert_string_equal(verifier.claim(tokens[i], "sub").c_str(), numbered_sub(i).c_str());
        known += verifier.computed() == before ? 1 : 0;
    }
    assert_int_equal(known, kMost);
}

void test_4096_tokens_are_remembered_together(void**) {
    Verifying verifier({kEveryKind[0]});
    for (unsigned round = 0; round < 3; round++) {
        for (std::size_t i = 0; i < kMost; i++) {
            assert_int_equal(computes(&verifier, numbered(i)), round == 0);
        }
    }
}

void test_a_token_in_use_is_not_forgotten_for_others(void**) {
    Verifying verifier({kEveryKind[0]});
    const std::string hot = hs256(R"({"sub":"hot"})");
    computes(&verifier, hot);
    for (std::size_t i = 0; i < 3 * kMost; i++) {
        computes(&verifier, numbered(i));
        assert_false(computes(&verifier, hot));
    }
}

// How many of some large tokens are remembered, all of which must stay right. `more` is a claim of each.
std::size_t known_of(Verifying* verifier, std::size_t count, const std::string& more) {
    std::vector<std::string> tokens;
    for (std::size_t i = 0; i < count; i++) {
        tokens.push_back(hs256("{" + quoted("sub", numbered_sub(i)) + "," + more + "}"));
        computes(verifier, tokens[i]);
    }
    std::size_t known = 0;
    for (std::size_t i = count; i-- > 0;) {
        const std::uint64_t before = verifier->computed();
        assert_string_equal(verifier->claim(tokens[i], "sub").c_str(), numbered_sub(i).c_str());
        known += verifier->computed() == before ? 1 : 0;
    }
    return known;
}

std::string repeated(std::string_view text, std::size_t count) {
    std::string all;
    while (count-- > 0) {
        all += text;
    }
    return all;
}

// Claims that jansson stores in different ways, each of about half of the most memory of one token.
std::vector<std::string> large_claims() {
    std::string members;
    for (unsigned i = 0; i < 200; i++) {
        members += "\"" + std::to_string(i) + "\":0,";
    }
    return {quoted("x", std::string(11'000, 'x')),
            R"("x":[)" + repeated("[],", 120) + "0]",
            R"("x":[)" + repeated("{},", 80) + "0]",
            R"("x":[)" + repeated("1,", 350) + "0]",
            R"("x":[)" + repeated("1.5,", 350) + "0]",
            R"("x":[)" + repeated("\"\",", 350) + "0]",
            R"("x":[)" + repeated("[[[[[]]]]],", 30) + "0]",
            R"("x":[)" + repeated(R"({"a":{"b":1}},)", 35) + "0]",
            R"("x":{)" + members + "\"a\":0}"};
}

std::size_t heap() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

// Of so many tokens that their claims would take more if all were remembered.
void test_remembered_claims_take_no_more_memory_than_they_may(void**) {
    for (const std::string& more : large_claims()) {
        const std::string text = "{" + more + "}";
        const std::size_t empty = heap();
        const Json claims = parse_object(bytes_of(text), text.size());
        const std::size_t count = kCounted ? TokenCache::kMostBytes / (heap() - empty) + 200 : 20;
        assert_in_range(count, 20, kMost);

        Verifying verifier({kEveryKind[0]});
        computes(&verifier, hs256(kAlice));
        const std::size_t before = heap();
        for (std::size_t i = 0; i < count; i++) {
            const std::string token = hs256("{" + quoted("sub", numbered_sub(i)) + "," + more + "}");
            assert_true(computes(&verifier, token));
            assert_false(computes(&verifier, token));
        }
        if (heap() > before + TokenCache::kMostBytes) {
            fail_msg("%zu bytes for %.20s", heap() - before, more.c_str());
        }
    }
}

void test_large_claims_are_remembered_as_far_as_memory_allows(void**) {
    Verifying verifier({kEveryKind[0]});
    const std::size_t known = known_of(&verifier, 1000, quoted("x", std::string(11'000, 'x')));
    assert_in_range(known, TokenCache::kMostBytes / 11'000 / 4, TokenCache::kMostBytes / 11'000);
}

// It would replace many other tokens.
void test_a_token_with_too_large_claims_is_verified_each_time(void**) {
    const std::string huge = R"("x":[)" + repeated("{},", 3900) + "0]";
    const std::string token = hs256("{" + quoted("sub", "alice") + "," + huge + "}");
    Verifying verifier({kEveryKind[0]});
    const std::size_t before = heap();
    for (unsigned i = 0; i < 3; i++) {
        assert_true(computes(&verifier, token));
        assert_string_equal(verifier.claim(token, "sub").c_str(), "alice");
    }
    assert_true(heap() < before + (1 << 20));
    assert_int_equal(known_of(&verifier, 20, huge), 0);
}

void test_small_tokens_have_entries_again_after_large_ones(void**) {
    Verifying verifier({kEveryKind[0]});
    for (std::size_t i = 0; i < 1000; i++) {
        computes(&verifier, numbered(i, 11'000));
    }
    for (unsigned round = 0; round < 2; round++) {
        for (std::size_t i = 0; i < 2000; i++) {
            computes(&verifier, numbered(i));
        }
    }
    for (std::size_t i = 0; i < 2000; i++) {
        assert_false(computes(&verifier, numbered(i)));
    }
}

void test_claims_stay_usable_after_their_token_was_forgotten(void**) {
    Json claims;
    char number[kLongestNumber];
    {
        Verifying verifier({kEveryKind[0]});
        claims = verifier.verify(hs256(R"({"sub":"alice","realm":{"tenant":"acme"}})"), kNow).claims;
        const std::string_view sub = claim_text(claims, "sub", number);
        for (std::size_t i = 0; i < 3 * kMost; i++) {
            verifier.verify(numbered(i), kNow);
        }
        assert_true(sub == "alice");
    }
    assert_true(claim_text(claims, "sub", number) == "alice");
    assert_true(claim_text(claims, "realm.tenant", number) == "acme");
}

void test_tokens_of_two_verifiers_do_not_mix(void**) {
    Verifying one({kEveryKind[0]});
    Verifying other;
    assert_added(other.keys.add("HS256", std::string(64, 'x'), 0));
    const std::string token = hs256(kAlice);
    assert_verdict(one.of(token), TokenVerdict::kValid);
    assert_verdict(other.of(token), TokenVerdict::kForged);
    assert_verdict(one.of(token), TokenVerdict::kValid);
    Verifying lenient({kEveryKind[0]}, 100);
    const std::string expiring = hs256(R"({"exp":1000})");
    assert_verdict(lenient.of(expiring, 1050), TokenVerdict::kValid);
    assert_verdict(one.of(expiring, 1050), TokenVerdict::kExpired);
}

void test_a_remembered_token_costs_no_allocation(void**) {
    for (const Kind& kind : kEveryKind) {
        Verifying verifier({kind});
        const std::string token =
            token_of(kind, R"({"sub":"alice","n":42,"r":1.5,"realm":{"tenant":"acme"},"exp":2000000000})");
        assert_true(computes(&verifier, token));
        assert_false(computes(&verifier, token));
        const unsigned long before = allocations;
        for (unsigned i = 0; i < 100; i++) {
            const auto result = verifier.verify(token, kNow + i);
            char number[kLongestNumber];
            for (const char* path : {"sub", "n", "r", "realm.tenant", "no.such.claim"}) {
                claim_text(result.claims, path, number);
            }
        }
        assert_int_equal(verifier.verify(token, 3e9).verdict, TokenVerdict::kExpired);
        assert_int_equal(allocations - before, 0);
    }
}

void test_allocations_are_counted(void**) {
    Verifying verifier({kEveryKind[0]});
    const std::string token = hs256(kAlice);
    const unsigned long before = allocations;
    assert_true(computes(&verifier, token));
    assert_int_equal(allocations > before, kCounted);
}

}  // namespace
}  // namespace rate_limit::identity

int main() {
    using namespace rate_limit::identity;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_signature_is_computed_once),
        cmocka_unit_test(test_a_remembered_token_is_the_same_text_wherever_it_stands),
        cmocka_unit_test(test_a_token_that_resembles_a_remembered_one_is_not_it),
        cmocka_unit_test(test_times_are_compared_at_each_use),
        cmocka_unit_test(test_a_remembered_token_expires_without_its_signature_being_computed),
        cmocka_unit_test(test_a_clock_that_is_set_back_makes_a_token_valid_again),
        cmocka_unit_test(test_a_token_that_comes_too_early_is_valid_later),
        cmocka_unit_test(test_tokens_that_are_not_valid_are_not_remembered),
        cmocka_unit_test(test_what_has_no_key_or_no_form_costs_no_signature),
        cmocka_unit_test(test_no_more_than_4096_tokens_are_remembered_and_all_stay_right),
        cmocka_unit_test(test_4096_tokens_are_remembered_together),
        cmocka_unit_test(test_a_token_in_use_is_not_forgotten_for_others),
        cmocka_unit_test(test_remembered_claims_take_no_more_memory_than_they_may),
        cmocka_unit_test(test_large_claims_are_remembered_as_far_as_memory_allows),
        cmocka_unit_test(test_a_token_with_too_large_claims_is_verified_each_time),
        cmocka_unit_test(test_small_tokens_have_entries_again_after_large_ones),
        cmocka_unit_test(test_claims_stay_usable_after_their_token_was_forgotten),
        cmocka_unit_test(test_tokens_of_two_verifiers_do_not_mix),
        cmocka_unit_test(test_a_remembered_token_costs_no_allocation),
        cmocka_unit_test(test_allocations_are_counted),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
