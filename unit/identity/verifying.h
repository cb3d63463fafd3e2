// A verifier with keys, and verdicts asserted in one line.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "identity/verifier.h"
#include "test.h"
#include "tokens.h"

namespace rate_limit::identity {

// Long past, so that a comparison with the machine's own clock would be seen.
constexpr double kNow = 1'000'000'000;

constexpr char kAlice[] = R"({"sub":"alice"})";

// Empty in these tests, or the test fails.
inline void assert_added(const std::string& wrong) {
    if (!wrong.empty()) {
        fail_msg("%s", wrong.c_str());
    }
}

// A copy in memory that ends where the text does.
class Exact {
  public:
    explicit Exact(std::string_view text) : bytes_(new char[text.size()]), size_(text.size()) {
        text.copy(bytes_.get(), size_);
    }
    std::string_view view() const { return {bytes_.get(), size_}; }

  private:
    std::unique_ptr<char[]> bytes_;
    std::size_t size_;
};

// A verifier of tokens of some kinds, or with a set of keys.
struct Verifying : Verifier {
    std::vector<std::string> ignored;

    Verifying() = default;
    explicit Verifying(const std::vector<Kind>& kinds, double leeway = 0) {
        for (const Kind& kind : kinds) {
            assert_added(keys.add(kind.algorithm, kind.file(), leeway));
        }
    }
    explicit Verifying(const std::string& set, double leeway = 0) {
        assert_added(keys.add_set(set, leeway, &ignored));
    }

    // Asked twice, since the second answer may be a remembered one, and from memory no longer than the token.
    TokenVerdict of(std::string_view token, double now = kNow) {
        const Exact exact(token);
        const Result result = verify(exact.view(), now);
        assert_int_equal(static_cast<bool>(result.claims), result.verdict == TokenVerdict::kValid);
        const Result again = verify(exact.view(), now);
        assert_int_equal(again.verdict, result.verdict);
        assert_int_equal(static_cast<bool>(again.claims), static_cast<bool>(result.claims));
        return result.verdict;
    }

    bool accepts(std::string_view token, double now = kNow) { return of(token, now) == TokenVerdict::kValid; }

    // A claim of a token; empty if it is not valid.
    std::string claim(std::string_view token, std::string_view path, double now = kNow) {
        const Result result = verify(token, now);
        char number[kLongestNumber];
        return result.claims ? std::string(claim_text(result.claims, path, number)) : "";
    }
};

inline const Kind& kind_of(std::string_view algorithm) {
    for (const Kind& kind : kEveryKind) {
        if (kind.algorithm == algorithm) {
            return kind;
        }
    }
    fail_msg("no such algorithm");
    return kEveryKind[0];
}

#define assert_verdict(given, expected)                                                               \
    do {                                                                                              \
        const rate_limit::identity::TokenVerdict given_ = (given);                                    \
        if (given_ != (expected)) {                                                                   \
            fail_msg("the verdict is \"%s\", not \"%s\"", rate_limit::identity::verdict_text(given_), \
                     rate_limit::identity::verdict_text(expected));                                   \
        }                                                                                             \
    } while (0)

}  // namespace rate_limit::identity
