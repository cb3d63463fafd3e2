// Fuzzes all that reads what a client or a key file says: tokens, headers, claims, keys, arguments and
// addresses.
//
// The first byte of an input chooses what the rest is; each rule that is broken aborts.
#include <arpa/inet.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/param_build.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "identity/address.h"
#include "identity/base64url.h"
#include "identity/request_text.h"
#include "identity/tokens.h"
#include "identity/verifier.h"

namespace rate_limit::identity {
namespace {

// Those of RFC 7515, A.1 to A.3, so that its examples are seeds.
constexpr char kSecret[] =
    R"({"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"})";
constexpr char kModulus[] =
    "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-"
    "SFd2lZ"
    "S-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-"
    "UTo7WTBEMa2"
    "R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_"
    "h9iaGNj8q2ethFkMLs91kzk2PAcD"
    "TW9gb54h4FRWyuXpoQ";
constexpr char kX[] = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU";
constexpr char kY[] = "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0";

constexpr double kNow = 1300819379;  // a second before those examples expire

// Another base64url than the one that is tried; unused bits do not matter.
std::string plain_decoded(std::string_view text) {
    static const std::string_view letters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    std::string bytes;
    unsigned held = 0;
    unsigned bits = 0;
    for (const char c : text) {
        const std::size_t value = letters.find(c);
        must(value != std::string_view::npos, "a valid token is base64url");
        held = held << 6 | static_cast<unsigned>(value);
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            bytes += static_cast<char>(held >> bits & 255);
        }
    }
    return bytes;
}

const Signer& secret() {
    static const Signer signer = Signer::secret(plain_decoded(
        "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"));
    return signer;
}

EVP_PKEY* public_key(const char* type, OSSL_PARAM* params) {
    EVP_PKEY* key = nullptr;
    EVP_PKEY_CTX* context = EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr);
    must(EVP_PKEY_fromdata_init(context) == 1 &&
             EVP_PKEY_fromdata(context, &key, EVP_PKEY_PUBLIC_KEY, params) == 1,
         "a public key");
    EVP_PKEY_CTX_free(context);
    return key;
}

EVP_PKEY* rsa() {
    static EVP_PKEY* const key = [] {
        std::string modulus = plain_decoded(kModulus);
        std::reverse(modulus.begin(), modulus.end());
        unsigned exponent = 65537;
        OSSL_PARAM params[] = {
            OSSL_PARAM_construct_BN("n", reinterpret_cast<unsigned char*>(modulus.data()), modulus.size()),
            OSSL_PARAM_construct_uint("e", &exponent), OSSL_PARAM_construct_end()};
        return public_key("RSA", params);
    }();
    return key;
}

EVP_PKEY* ec() {
    static EVP_PKEY* const key = [] {
        std::string point = "\x04" + plain_decoded(kX) + plain_decoded(kY);
        char curve[] = "P-256";
        OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string("group", curve, 0),
                               OSSL_PARAM_construct_octet_string("pub", point.data(), point.size()),
                               OSSL_PARAM_construct_end()};
        return public_key("EC", params);
    }();
    return key;
}

bool verified(EVP_PKEY* key, const EVP_MD* digest, bool pss, std::string_view input,
              std::string_view signature) {
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    EVP_PKEY_CTX* options = nullptr;
    must(EVP_DigestVerifyInit(context, &options, digest, nullptr, key) == 1, "EVP_DigestVerifyInit");
    if (pss) {
        EVP_PKEY_CTX_set_rsa_padding(options, RSA_PKCS1_PSS_PADDING);
        EVP_PKEY_CTX_set_rsa_pss_saltlen(options, RSA_PSS_SALTLEN_DIGEST);
    }
    const bool good =
        EVP_DigestVerify(context, bytes_of(signature), signature.size(), bytes_of(input), input.size()) == 1;
    EVP_MD_CTX_free(context);
    return good;
}

std::string der_of(std::string_view raw) {
    ECDSA_SIG* pair = ECDSA_SIG_new();
    ECDSA_SIG_set0(pair, BN_bin2bn(bytes_of(raw), 32, nullptr), BN_bin2bn(bytes_of(raw) + 32, 32, nullptr));
    unsigned char* der = nullptr;
    const int size = i2d_ECDSA_SIG(pair, &der);
    std::string text(reinterpret_cast<char*>(der), static_cast<std::size_t>(size));
    OPENSSL_free(der);
    ECDSA_SIG_free(pair);
    return text;
}

// What OpenSSL alone says of the signature of a token in three parts.
bool really_signed(std::string_view token, std::string_view algorithm) {
    const std::string_view input = token.substr(0, token.rfind('.'));
    const std::string signature = plain_decoded(token.substr(input.size() + 1));
    const std::string_view bits = algorithm.substr(2);
    const EVP_MD* digest = bits == "256" ? EVP_sha256() : bits == "384" ? EVP_sha384() : EVP_sha512();
    switch (algorithm[0]) {
        case 'H':
            return secret().sign(algorithm, input) == signature;
        case 'R':
            return verified(rsa(), digest, false, input, signature);
        case 'P':
            return verified(rsa(), digest, true, input, signature);
        default:
            return algorithm == "ES256" && signature.size() == 64 &&
                   verified(ec(), digest, false, input, der_of(signature));
    }
}

struct Keyed : Verifier {
    Keyed() {
        std::vector<std::string> ignored;
        const std::string rsa_jwk = std::string(R"({"kty":"RSA","e":"AQAB","n":")") + kModulus + "\"}";
        const std::string ec_jwk =
            std::string(R"({"kty":"EC","crv":"P-256","kid":"ec","x":")") + kX + R"(","y":")" + kY + "\"}";
        must(keys.add_set(set_of({kSecret, rsa_jwk, ec_jwk}), 0, &ignored).empty() && ignored.empty(),
             "add_set");
    }
};

// Looks up every claim by its path, and those at the top must be found whatever their names are.
void look_up(const Json& claims, const json_t* object, const std::string& prefix, unsigned depth) {
    const char* name = nullptr;
    json_t* value = nullptr;
    json_object_foreach(const_cast<json_t*>(object), name, value) {
        char number[kLongestNumber];
        const std::string path = prefix + name;
        const std::string_view text = claim_text(claims, path, number);
        if (depth == 0) {
            must(!json_is_string(value) ||
                     text == std::string_view(json_string_value(value), json_string_length(value)),
                 "a claim is found by its whole name");
            must(!json_is_boolean(value) || text == (json_is_true(value) ? "true" : "false"),
                 "a boolean is text");
            must(!json_is_integer(value) || text == std::to_string(json_integer_value(value)),
                 "an integer is text");
            must(!json_is_real(value) || std::stod(std::string(text)) == json_real_value(value),
                 "a real is text");
            must(!(json_is_null(value) || json_is_array(value) || json_is_object(value)) || text.empty(),
                 "other values are empty");
            variable_text(claims, path, number);
        }
        if (json_is_object(value) && depth < 4) {
            look_up(claims, value, path + ".", depth + 1);
        }
    }
}

// Verifies a token twice, and compares the verdict with what others say of it.
void verify(std::string_view token) {
    static Keyed verifier;
    const std::unique_ptr<char[]> exact(new char[token.size()]);
    token.copy(exact.get(), token.size());
    token = {exact.get(), token.size()};
    const Verifier::Result result = verifier.verify(token, kNow);
    const std::uint64_t computed = verifier.computed();
    const Verifier::Result again = verifier.verify(token, kNow);
    must(result.verdict == again.verdict, "the second verdict is the first");
    must(static_cast<bool>(result.claims) == (result.verdict == TokenVerdict::kValid),
         "claims are of a valid token");
    must(verdict_text(result.verdict) != nullptr, "a verdict has words");
    if (result.verdict != TokenVerdict::kValid) {
        return;
    }
    must(json_equal(result.claims.get(), again.claims.get()), "the second claims are the first");
    must(verifier.computed() == computed || token.size() > 200, "a valid token is computed once");
    must(std::count(token.begin(), token.end(), '.') == 2, "a valid token has three parts");
    json_t* header =
        json_loads(plain_decoded(token.substr(0, token.find('.'))).c_str(), JSON_REJECT_DUPLICATES, nullptr);
    const char* algorithm = json_string_value(json_object_get(header, "alg"));
    must(algorithm != nullptr && is_algorithm(algorithm), "a valid token has an algorithm");
    must(json_object_get(header, "crit") == nullptr, "a valid token has no crit");
    must(really_signed(token, algorithm), "a valid token is signed");
    const json_t* expires = json_object_get(result.claims.get(), "exp");
    const json_t* not_before = json_object_get(result.claims.get(), "nbf");
    must(expires == nullptr || kNow < json_number_value(expires), "a valid token has not expired");
    must(not_before == nullptr || kNow >= json_number_value(not_before), "a valid token is valid already");
    look_up(result.claims, result.claims.get(), "", 0);
    json_decref(header);
}

void verify_signed(std::string_view header, std::string_view claims) {
    const std::string token = signed_token(header, claims, secret(), "HS256");
    verify(token);
    verify(token.substr(0, token.size() - 1));
}

void read_key(std::string_view input) {
    static const char* const names[] = {"HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256",
                                        "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "none"};
    const char* algorithm = names[static_cast<unsigned char>(input[0]) % std::size(names)];
    input.remove_prefix(1);
    Verifier verifier;
    const std::string wrong = verifier.keys.add(algorithm, input, 0);
    must(!wrong.empty() || !verifier.keys.all().empty(), "a key is taken or refused");
    must(wrong.find('\n') == std::string::npos, "what is wrong is told in a line");
    must(is_algorithm(algorithm) || !wrong.empty(), "none is no algorithm");
    if (wrong.empty() && algorithm[0] == 'H') {
        must(input.size() >= 32 && input.find("-----BEGIN ") == std::string_view::npos,
             "a secret is long enough");
    }
    verifier.verify(signed_token(header_of(algorithm), "{}", secret(), "HS256"), kNow);
}

void read_set(std::string_view input) {
    Verifier verifier;
    std::vector<std::string> ignored;
    const std::string wrong = verifier.keys.add_set(input, 0, &ignored);
    must(wrong.empty() == !verifier.keys.all().empty(), "a set has a key or is refused");
    for (const Key& key : verifier.keys.all()) {
        must(key.checker != nullptr && is_algorithm(jwt_alg_str(key.algorithm)), "a key has an algorithm");
        verifier.verify(signed_token(header_of(jwt_alg_str(key.algorithm)), "{}", secret(), "HS256"), kNow);
    }
}

bool inside(std::string_view part, std::string_view whole) {
    return part.empty() ||
           (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

// A name, a line's end, and a query or the value of a header.
void look_for(std::string_view input) {
    const std::string_view name = input.substr(0, input.find('\n'));
    const std::string_view text =
        name.size() < input.size() ? input.substr(name.size() + 1) : std::string_view();
    const Found argument = find_argument(text, name);
    Found cookie;
    find_cookie(text, name, &cookie);
    for (const Found& found : {argument, cookie}) {
        must(inside(found.value, text), "what is found is in the text");
        must(found.only().empty() || found.count == 1, "only what stands once counts");
    }
    must(inside(trim(text), text) && inside(query_of(text), text), "what is cut is in the text");
    must(argument.count <= 1 + static_cast<std::size_t>(std::count(text.begin(), text.end(), '&')), "counts");
    must(cookie.count <= 1 + static_cast<std::size_t>(std::count(text.begin(), text.end(), ';')), "counts");
    const std::unique_ptr<char[]> out(new char[3 * text.size()]);
    must(decode_argument(text, out.get()) <= text.size(), "what is decoded is no longer");
    const std::size_t size = escape(text, out.get());
    must(size >= text.size() && size <= 3 * text.size() && !has_control({out.get(), size}),
         "what is escaped is safe");
    must(needs_escape(text) == (std::string_view(out.get(), size) != text), "needs_escape");
    same_header(name, text);
}

void print(std::string_view input) {
    Prefixes prefixes;
    const std::size_t end = std::min(input.find('\n'), input.size());
    if (parse_prefixes(input.substr(0, end), &prefixes)) {
        must(prefixes.v4 >= 1 && prefixes.v4 <= 32 && prefixes.v6 >= 1 && prefixes.v6 <= 128, "prefixes");
        input.remove_prefix(std::min(end + 1, input.size()));
    }
    for (const std::size_t size : {std::size_t{4}, std::size_t{16}}) {
        if (input.size() < size) {
            continue;
        }
        char name[kLongestAddress];
        const std::size_t used = print_address(bytes_of(input), size, prefixes, name);
        must(used <= sizeof(name) && std::string_view(name, 3) == "ip:", "a name fits");
        const std::string text(name + 3, used - 3);
        const std::string address = text.substr(0, text.find('/'));
        const int family = address.find(':') != std::string::npos ? AF_INET6 : AF_INET;
        unsigned char back[16];
        must(inet_pton(family, address.c_str(), back) == 1, "a name reads back");
        char again[kLongestAddress];
        const std::size_t length = print_address(back, family == AF_INET6 ? 16 : 4, prefixes, again);
        must(std::string_view(again, length) == std::string_view(name, used), "a network is in itself");
    }
    const std::string_view text = input.substr(0, kLongestEncoded);
    const std::unique_ptr<unsigned char[]> out(new unsigned char[(text.size() + 3) / 4 * 3]);
    std::size_t size = 0;
    if (decode_base64url(text, out.get(), &size)) {
        must(size <= text.size(), "what is decoded is no longer");
        must(std::string_view(reinterpret_cast<char*>(out.get()), size) == plain_decoded(text), "base64url");
        must(encode_base64url(out.get(), size).size() == text.size(), "encoded again it is as long");
    }
}

}  // namespace
}  // namespace rate_limit::identity

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace rate_limit::identity;
    if (size < 2) {
        return 0;
    }
    const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
    const std::size_t line = std::min(input.find('\n'), input.size() - 1);
    switch (data[0] % 8) {
        case 0:
            verify(input);
            break;
        case 1:
            verify_signed(input, R"({"sub":"alice"})");
            break;
        case 2:
            verify_signed(R"({"alg":"HS256"})", input);
            break;
        case 3:
            verify_signed(input.substr(0, line), input.substr(line + 1));
            break;
        case 4:
            read_key(input);
            break;
        case 5:
            read_set(input);
            break;
        case 6:
            look_for(input);
            break;
        default:
            print(input);
            break;
    }
    return 0;
}
