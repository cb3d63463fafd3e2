// The cost of naming a client: by a new or cached token, by an address, an argument or a cookie.
#include <benchmark/benchmark.h>
#include <time.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "identity/address.h"
#include "identity/request_text.h"
#include "identity/tokens.h"
#include "identity/verifier.h"

namespace rate_limit::identity {
namespace {

constexpr double kNow = 1'000'000'000;

// About ten claims and, with an RSA signature, 900 bytes; tokens with other signatures are shorter.
std::string typical_claims(std::size_t number) {
    return R"({"iss":"https://login.example.com/realms/production","sub":"7c9e6679-7425-40de-944b-e07fc1)" +
           std::to_string(100'000 + number) +
           R"(","aud":["api","web"],"exp":1000003600,"nbf":999999990,"iat":999999990,"jti":"b5f1c2d4-0000-4000-8000-1")" +
           R"(,"scope":"openid profile orders:read orders:write","plan":"gold","realm":{"tenant":"acme","region":"eu-central-1"})" +
           R"(,"email_verified":true,"azp":"frontend"})";
}

const Kind& kind_of(std::string_view algorithm) {
    for (const Kind& kind : kEveryKind) {
        if (kind.algorithm == algorithm) {
            return kind;
        }
    }
    std::abort();
}

std::string typical_token(const Kind& kind, std::size_t number) {
    return token_of(kind, typical_claims(number), R"("typ":"JWT","kid":"2024-11-key-1")");
}

void add_key(const Kind& kind, Verifier* verifier) {
    must(verifier->keys.add(kind.algorithm, kind.file(), 0).empty(), "adding a key");
}

// Returns a verifier that has allocated its memory and has seen only a token of another algorithm.
std::unique_ptr<Verifier> started(const Kind& kind) {
    static const Kind& other = kind_of("HS512");
    static const std::string token = typical_token(other, 1);
    auto verifier = std::make_unique<Verifier>();
    add_key(kind, verifier.get());
    add_key(other, verifier.get());
    must(verifier->verify(token, kNow).verdict == TokenVerdict::kValid, "a token");
    return verifier;
}

double processor_seconds() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// Times only the verification, not the creation of a verifier that has not seen the token.
void bench_new_token(benchmark::State& state, const char* algorithm) {
    const Kind& kind = kind_of(algorithm);
    const std::string token = typical_token(kind, 0);
    for (auto _ : state) {
        const auto verifier = started(kind);
        const double begin = processor_seconds();
        const Verifier::Result result = verifier->verify(token, kNow);
        state.SetIterationTime(processor_seconds() - begin);
        must(result.verdict == TokenVerdict::kValid, "a token");
    }
    state.counters["bytes"] = static_cast<double>(token.size());
}

void bench_remembered_token(benchmark::State& state, const char* algorithm) {
    const Kind& kind = kind_of(algorithm);
    const std::string token = typical_token(kind, 0);
    const auto verifier = started(kind);
    for (auto _ : state) {
        const Verifier::Result result = verifier->verify(token, kNow);
        char number[kLongestNumber];
        benchmark::DoNotOptimize(claim_text(result.claims, "sub", number));
    }
    must(verifier->computed() == 2, "remembering");
    state.counters["bytes"] = static_cast<double>(token.size());
}

// A number of tokens that seldom exceeds the room of the cache.
void bench_thousand_remembered_tokens(benchmark::State& state) {
    const Kind& kind = kind_of("HS256");
    const auto verifier = started(kind);
    std::vector<std::string> tokens;
    for (std::size_t i = 0; i < 1000; i++) {
        tokens.push_back(typical_token(kind, i));
        verifier->verify(tokens.back(), kNow);
    }
    std::size_t next = 0;
    for (auto _ : state) {
        benchmark::DoNotOptimize(verifier->verify(tokens[next++ % tokens.size()], kNow).verdict);
    }
}

// The cost that an attacker can cause.
void bench_forged_token(benchmark::State& state, const char* algorithm) {
    const Kind& kind = kind_of(algorithm);
    std::string token = typical_token(kind, 0);
    char& letter = token[token.size() - 20];
    letter = letter == 'A' ? 'B' : 'A';
    const auto verifier = started(kind);
    for (auto _ : state) {
        benchmark::DoNotOptimize(verifier->verify(token, kNow).verdict);
    }
}

void bench_malformed_token(benchmark::State& state) {
    const auto verifier = started(kind_of("HS256"));
    const std::string token = "a.b.c";
    for (auto _ : state) {
        benchmark::DoNotOptimize(verifier->verify(token, kNow).verdict);
    }
}

void bench_claim(benchmark::State& state, const char* path) {
    const std::string text = typical_claims(0);
    const Json claims = parse_object(bytes_of(text), text.size());
    for (auto _ : state) {
        char number[kLongestNumber];
        benchmark::DoNotOptimize(claim_text(claims, path, number));
    }
}

void bench_print_address(benchmark::State& state, std::size_t size) {
    const unsigned char bytes[16] = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5};
    for (auto _ : state) {
        char name[kLongestAddress];
        benchmark::DoNotOptimize(print_address(bytes, size, {}, name));
        benchmark::DoNotOptimize(name);
    }
}

void bench_find_argument(benchmark::State& state) {
    const std::string query =
        "page=2&sort=price%2Cdesc&filter=color%3Ared&limit=50&api_key=0123456789abcdef&lang=de";
    for (auto _ : state) {
        benchmark::DoNotOptimize(find_argument(query, "api_key"));
    }
}

void bench_find_cookie(benchmark::State& state) {
    const std::string header =
        "_ga=GA1.2.1234567890.1234567890; theme=dark; consent=yes; sid=0123456789abcdef0123456789abcdef; "
        "lang=de";
    for (auto _ : state) {
        Found found;
        find_cookie(header, "sid", &found);
        benchmark::DoNotOptimize(found);
    }
}

BENCHMARK_CAPTURE(bench_new_token, HS256, "HS256")->UseManualTime();
BENCHMARK_CAPTURE(bench_new_token, RS256, "RS256")->UseManualTime();
BENCHMARK_CAPTURE(bench_new_token, PS256, "PS256")->UseManualTime();
BENCHMARK_CAPTURE(bench_new_token, ES256, "ES256")->UseManualTime();
BENCHMARK_CAPTURE(bench_new_token, EdDSA, "EdDSA")->UseManualTime();
BENCHMARK_CAPTURE(bench_remembered_token, HS256, "HS256");
BENCHMARK_CAPTURE(bench_remembered_token, RS256, "RS256");
BENCHMARK_CAPTURE(bench_remembered_token, PS256, "PS256");
BENCHMARK_CAPTURE(bench_remembered_token, ES256, "ES256");
BENCHMARK_CAPTURE(bench_remembered_token, EdDSA, "EdDSA");
BENCHMARK(bench_thousand_remembered_tokens);
BENCHMARK_CAPTURE(bench_forged_token, HS256, "HS256");
BENCHMARK_CAPTURE(bench_forged_token, RS256, "RS256");
BENCHMARK_CAPTURE(bench_forged_token, ES256, "ES256");
BENCHMARK(bench_malformed_token);
BENCHMARK_CAPTURE(bench_claim, top, "plan");
BENCHMARK_CAPTURE(bench_claim, nested, "realm.tenant");
BENCHMARK_CAPTURE(bench_claim, absent, "no.such.claim");
BENCHMARK_CAPTURE(bench_print_address, v4, 4);
BENCHMARK_CAPTURE(bench_print_address, v6, 16);
BENCHMARK(bench_find_argument);
BENCHMARK(bench_find_cookie);

}  // namespace
}  // namespace rate_limit::identity
