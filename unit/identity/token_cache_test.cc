// The token cache keeps the tokens that were used last, within its bounds.
#include "identity/token_cache.h"

#include <rapidcheck.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "test.h"

namespace rate_limit::identity {
namespace {

// The digest of a number. Numbers that differ by 4096 have the same first bytes, which may select a bucket.
Digest digest_of(std::uint32_t number) {
    Digest digest = {};
    const std::uint32_t low = number % 4096;
    std::memcpy(digest.bytes, &low, sizeof(low));
    std::memcpy(digest.bytes + 28, &number, sizeof(number));
    return digest;
}

Token token_of(std::uint32_t number, std::size_t memory) {
    return {Json(json_integer(number)), 1.0 * number, 2.0 * number, memory};
}

// The number of the token that is found, or -1; all of it must be that token's.
long found(TokenCache* cache, std::uint32_t number) {
    const Token* token = cache->find(digest_of(number));
    if (token == nullptr) {
        return -1;
    }
    assert_int_equal(json_integer_value(token->claims.get()), number);
    assert_true(token->not_before == 1.0 * number && token->expires == 2.0 * number);
    return static_cast<long>(json_integer_value(token->claims.get()));
}

void test_an_empty_table_knows_nothing(void**) {
    TokenCache cache;
    assert_int_equal(found(&cache, 0), -1);
    assert_int_equal(found(&cache, 1), -1);
}

void test_a_token_is_found_by_its_whole_digest(void**) {
    TokenCache cache;
    const Digest digest = digest_of(7);
    cache.remember(digest, token_of(7, 100));
    assert_int_equal(found(&cache, 7), 7);
    for (unsigned bit = 0; bit < 256; bit++) {
        Digest other = digest;
        other.bytes[bit / 8] ^= static_cast<unsigned char>(1U << bit % 8);
        assert_null(cache.find(other));
    }
    assert_int_equal(found(&cache, 7), 7);
}

void test_tokens_of_one_bucket_are_told_apart(void**) {
    TokenCache cache;
    for (std::uint32_t i = 0; i < 100; i++) {
        cache.remember(digest_of(i * 4096), token_of(i * 4096, 1));
    }
    for (std::uint32_t i = 0; i < 100; i++) {
        assert_int_equal(found(&cache, i * 4096), i * 4096);
        assert_int_equal(found(&cache, i * 4096 + 1), -1);
    }
}

void test_the_token_that_was_not_used_for_longest_makes_way(void**) {
    TokenCache cache;
    for (std::uint32_t i = 0; i < TokenCache::kMostTokens; i++) {
        cache.remember(digest_of(i), token_of(i, 1));
    }
    assert_int_equal(found(&cache, 0), 0);
    cache.remember(digest_of(5000), token_of(5000, 1));
    assert_int_equal(found(&cache, 0), 0);
    assert_int_equal(found(&cache, 1), -1);
    assert_int_equal(found(&cache, 2), 2);
    cache.remember(digest_of(5001), token_of(5001, 1));
    assert_int_equal(found(&cache, 2), 2);
    assert_int_equal(found(&cache, 3), -1);
    assert_int_equal(found(&cache, 5000), 5000);
}

void test_bytes_are_counted_to_the_last_one(void**) {
    TokenCache cache;
    const std::uint32_t count = TokenCache::kMostBytes / TokenCache::kMostBytesOfOne;
    for (std::uint32_t i = 0; i < count; i++) {
        cache.remember(digest_of(i), token_of(i, TokenCache::kMostBytesOfOne));
    }
    for (std::uint32_t i = 0; i < count; i++) {
        assert_int_equal(found(&cache, i), i);
    }
    cache.remember(digest_of(9000), token_of(9000, 1));
    assert_int_equal(found(&cache, 0), -1);
    assert_int_equal(found(&cache, 1), 1);
    // The first token left room for one byte less.
    cache.remember(digest_of(9001), token_of(9001, TokenCache::kMostBytesOfOne - 1));
    assert_int_equal(found(&cache, 2), 2);
    cache.remember(digest_of(9002), token_of(9002, 1));
    assert_int_equal(found(&cache, 3), -1);
    assert_int_equal(found(&cache, 4), 4);
}

void test_a_token_that_is_too_large_is_not_remembered_and_moves_no_other(void**) {
    TokenCache cache;
    cache.remember(digest_of(1), token_of(1, TokenCache::kMostBytesOfOne));
    cache.remember(digest_of(2), token_of(2, TokenCache::kMostBytesOfOne + 1));
    cache.remember(digest_of(3), token_of(3, SIZE_MAX));
    assert_int_equal(found(&cache, 1), 1);
    assert_int_equal(found(&cache, 2), -1);
    assert_int_equal(found(&cache, 3), -1);
}

void test_claims_that_are_forgotten_are_freed(void**) {
    TokenCache cache;
    const Json claims(json_object());
    cache.remember(digest_of(1), {claims, 0, 0, 1});
    assert_int_equal(claims.get()->refcount, 2);
    for (std::uint32_t i = 0; i < TokenCache::kMostTokens; i++) {
        cache.remember(digest_of(100 + i), token_of(100 + i, 1));
    }
    assert_int_equal(claims.get()->refcount, 1);
    // A large one makes several go at once, and takes the entry of one.
    TokenCache full;
    for (std::uint32_t i = 0; i < TokenCache::kMostTokens; i++) {
        full.remember(digest_of(i), {claims, 0, 0, TokenCache::kMostBytes / TokenCache::kMostTokens});
    }
    assert_int_equal(claims.get()->refcount, 1 + TokenCache::kMostTokens);
    full.remember(digest_of(5000), token_of(5000, 10 * TokenCache::kMostBytes / TokenCache::kMostTokens));
    assert_int_equal(claims.get()->refcount, 1 + TokenCache::kMostTokens - 10);
    full = TokenCache();
    assert_int_equal(claims.get()->refcount, 1);
    {
        TokenCache other;
        other.remember(digest_of(1), {claims, 0, 0, 1});
        assert_int_equal(claims.get()->refcount, 2);
    }
    assert_int_equal(claims.get()->refcount, 1);
}

// A model: the remembered tokens, the last used first.
struct Model {
    struct Entry {
        std::uint32_t number;
        std::size_t memory;
    };
    std::vector<Entry> entries;

    bool find(std::uint32_t number) {
        const auto at = std::find_if(entries.begin(), entries.end(),
                                     [&](const Entry& entry) { return entry.number == number; });
        if (at == entries.end()) {
            return false;
        }
        std::rotate(entries.begin(), at, at + 1);
        return true;
    }

    void remember(const Entry& entry) {
        if (entry.memory > TokenCache::kMostBytesOfOne) {
            return;
        }
        entries.insert(entries.begin(), entry);
        std::size_t sum = 0;
        std::size_t count = 0;
        while (count < entries.size() && count < TokenCache::kMostTokens &&
               sum + entries[count].memory <= TokenCache::kMostBytes) {
            sum += entries[count++].memory;
        }
        entries.resize(count);
    }
};

void test_any_use_leaves_what_a_list_would_hold(void**) {
    setenv("RC_PARAMS", "max_success=10", 0);
    const bool kept = rc::check("the table is a list by use", [] {
        TokenCache cache;
        Model model;
        const auto numbers = *rc::gen::element<std::uint32_t>(300, 5000, 20'000);
        const auto largest = *rc::gen::element<std::size_t>(10, 6000, TokenCache::kMostBytesOfOne + 2000);
        std::uint32_t state = *rc::gen::arbitrary<std::uint32_t>();
        const auto draw = [&state](std::size_t most) {
            state = state * 1664525 + 1013904223;
            return static_cast<std::size_t>(state >> 8) % most;
        };
        for (unsigned i = 0; i < 10'000; i++) {
            const auto number = static_cast<std::uint32_t>(draw(numbers));
            const bool known = model.find(number);
            RC_ASSERT((found(&cache, number) >= 0) == known);
            if (!known) {
                const std::size_t memory = draw(largest) + 1;
                cache.remember(digest_of(number), token_of(number, memory));
                model.remember({number, memory});
            }
        }
        for (std::size_t i = model.entries.size(); i-- > 0;) {
            RC_ASSERT(found(&cache, model.entries[i].number) >= 0);
        }
    });
    assert_true(kept);
}

}  // namespace
}  // namespace rate_limit::identity

int main() {
    using namespace rate_limit::identity;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_an_empty_table_knows_nothing),
        cmocka_unit_test(test_a_token_is_found_by_its_whole_digest),
        cmocka_unit_test(test_tokens_of_one_bucket_are_told_apart),
        cmocka_unit_test(test_the_token_that_was_not_used_for_longest_makes_way),
        cmocka_unit_test(test_bytes_are_counted_to_the_last_one),
        cmocka_unit_test(test_a_token_that_is_too_large_is_not_remembered_and_moves_no_other),
        cmocka_unit_test(test_claims_that_are_forgotten_are_freed),
        cmocka_unit_test(test_any_use_leaves_what_a_list_would_hold),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
