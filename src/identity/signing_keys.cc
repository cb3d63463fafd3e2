// Reads secrets, public keys and key sets, and passes them to libjwt.
#include "identity/signing_keys.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <algorithm>

#include "identity/jwk.h"

namespace rate_limit::identity {

const char kAlgorithmsAccepted[] =
    "HS256, HS384, HS512, RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512 or EdDSA";

namespace {

// What an algorithm requires of its key.
struct Algorithm {
    jwt_alg_t id;
    jwk_key_type_t type;
    int least_bits;
    std::string_view curve;  // of an elliptic curve's key
};

constexpr Algorithm kAlgorithms[] = {
    {JWT_ALG_HS256, JWK_KEY_TYPE_OCT, 256, ""},     {JWT_ALG_HS384, JWK_KEY_TYPE_OCT, 384, ""},
    {JWT_ALG_HS512, JWK_KEY_TYPE_OCT, 512, ""},     {JWT_ALG_RS256, JWK_KEY_TYPE_RSA, 2048, ""},
    {JWT_ALG_RS384, JWK_KEY_TYPE_RSA, 2048, ""},    {JWT_ALG_RS512, JWK_KEY_TYPE_RSA, 2048, ""},
    {JWT_ALG_PS256, JWK_KEY_TYPE_RSA, 2048, ""},    {JWT_ALG_PS384, JWK_KEY_TYPE_RSA, 2048, ""},
    {JWT_ALG_PS512, JWK_KEY_TYPE_RSA, 2048, ""},    {JWT_ALG_ES256, JWK_KEY_TYPE_EC, 256, "P-256"},
    {JWT_ALG_ES384, JWK_KEY_TYPE_EC, 384, "P-384"}, {JWT_ALG_ES512, JWK_KEY_TYPE_EC, 521, "P-521"},
    {JWT_ALG_EDDSA, JWK_KEY_TYPE_OKP, 256, ""},
};

const Algorithm* find_algorithm(std::string_view name) {
    const jwt_alg_t id = jwt_str_alg(std::string(name).c_str());
    const auto* found = std::find_if(std::begin(kAlgorithms), std::end(kAlgorithms),
                                     [&](const Algorithm& algorithm) { return algorithm.id == id; });
    return found != std::end(kAlgorithms) ? found : nullptr;
}

// Why an algorithm cannot be used with a key; empty if it can.
std::string why_unfit(const Algorithm& algorithm, const jwk_item_t* item) {
    const int bits = jwks_item_key_bits(item);
    const char* curve = jwks_item_curve(item);
    const std::string name = jwt_alg_str(algorithm.id);
    if (algorithm.type != jwks_item_kty(item)) {
        return name + " needs a key of another type";
    }
    if (!algorithm.curve.empty() && (curve == nullptr || algorithm.curve != curve)) {
        return name + " needs a key of the curve " + std::string(algorithm.curve);
    }
    if (bits < algorithm.least_bits) {
        return name + " needs a key of at least " + std::to_string(algorithm.least_bits) +
               " bits, and this has " + std::to_string(bits);
    }
    return {};
}

// A text secret without the line end that an editor adds. In a file of random bytes a line end is part of the
// secret.
std::string_view trim_secret(std::string_view content) {
    std::string_view text = content;
    for (const char end : {'\n', '\r'}) {
        if (!text.empty() && text.back() == end) {
            text.remove_suffix(1);
        }
    }
    const Json as_json(json_stringn(text.data(), text.size()));  // null if it is not UTF-8
    const bool is_text =
        as_json && std::none_of(text.begin(), text.end(), [](char c) {
            return static_cast<unsigned char>(c) < ' ' && c != '\t' && c != '\r' && c != '\n';
        });
    return is_text ? text : content;
}

std::size_t count_of(std::string_view text, std::string_view part) {
    std::size_t count = 0;
    for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
        count++;
    }
    return count;
}

// A public key has no pass phrase; without this function OpenSSL would ask for one on the terminal.
int no_pass_phrase(char*, int, int, void*) { return 0; }

// A name from a file, escaped for a log line.
std::string printable(std::string_view text) {
    constexpr std::size_t kMost = 64;
    std::string copy(text.substr(0, kMost));
    std::replace_if(
        copy.begin(), copy.end(), [](char c) { return c < ' ' || c > '~' || c == '"' || c == '\\'; }, '?');
    return copy;
}

}  // namespace

bool is_algorithm(std::string_view name) { return find_algorithm(name) != nullptr; }

bool SigningKeys::add_checker(const jwk_item_t* item, jwt_alg_t algorithm, double leeway) {
    const bool rsa = jwks_item_kty(item) == JWK_KEY_TYPE_RSA;
    const std::size_t signature_size = rsa ? (static_cast<std::size_t>(jwks_item_key_bits(item)) + 7) / 8 : 0;
    Key key = {
        algorithm, jwks_item_kid(item) != nullptr ? jwks_item_kid(item) : "", leeway, signature_size, {}};
    key.checker.reset(jwt_checker_new());
    // libjwt compares the algorithms of token and key only if no algorithm is set here.
    const jwt_alg_t told = jwks_item_alg(item) == JWT_ALG_NONE ? algorithm : JWT_ALG_NONE;
    constexpr time_t kNotChecked = -1;
    if (key.checker == nullptr || jwt_checker_setkey(key.checker.get(), told, item) != 0 ||
        jwt_checker_time_leeway(key.checker.get(), JWT_CLAIM_EXP, kNotChecked) != 0 ||
        jwt_checker_time_leeway(key.checker.get(), JWT_CLAIM_NBF, kNotChecked) != 0) {
        return false;
    }
    keys_.push_back(std::move(key));
    return true;
}

// Adds a key with its algorithm or, if it has none, with all algorithms that fit. Returns nothing, or why
// not.
std::string SigningKeys::add_jwk(const json_t* jwk, double leeway) {
    std::string wrong = why_unused(jwk);
    if (!wrong.empty()) {
        return wrong;
    }
    const std::unique_ptr<char, void (*)(void*)> text(json_dumps(jwk, JSON_COMPACT), free);
    Set set(text != nullptr ? jwks_create(text.get()) : nullptr);
    ERR_clear_error();
    const jwk_item_t* item = set != nullptr ? jwks_item_get(set.get(), 0) : nullptr;
    if (item == nullptr) {
        return "it cannot be read";
    }
    if (jwks_item_error(item) != 0) {
        return printable(jwks_item_error_msg(item));
    }
    bool added = false;
    for (const Algorithm& algorithm : kAlgorithms) {
        const bool named = jwks_item_alg(item) == algorithm.id;
        if (!named && (jwks_item_alg(item) != JWT_ALG_NONE || algorithm.type != jwks_item_kty(item))) {
            continue;
        }
        wrong = why_unfit(algorithm, item);
        added = (wrong.empty() && add_checker(item, algorithm.id, leeway)) || added;
    }
    if (!added) {
        return wrong.empty() ? "no algorithm fits it" : wrong;
    }
    sets_.push_back(std::move(set));
    return {};
}

std::string SigningKeys::add_secret(jwt_alg_t algorithm, std::string_view content, double leeway) {
    const std::string name = jwt_alg_str(algorithm);
    if (looks_public(content)) {
        return "is a public key, a key set or the like, and who knows it could sign; for " + name +
               ", it must be a file with the secret itself";
    }
    const std::string_view secret = trim_secret(content);
    const Json jwk = jwk_of_secret(secret);
    json_object_set_new(jwk.get(), "alg", json_string(name.c_str()));
    if (secret.empty()) {
        return "is empty; it must be a file with the secret for " + name;
    }
    const std::string wrong = add_jwk(jwk.get(), leeway);
    return wrong.empty() ? wrong : "has a secret that does not fit: " + wrong + "; it must be longer";
}

std::string SigningKeys::add_public(jwt_alg_t algorithm, std::string_view content, double leeway) {
    const std::string name = jwt_alg_str(algorithm);
    const std::unique_ptr<BIO, int (*)(BIO*)> file(
        BIO_new_mem_buf(content.data(), static_cast<int>(content.size())), BIO_free);
    std::size_t count = 0;
    std::string wrong;
    while (wrong.empty()) {
        const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(
            PEM_read_bio_PUBKEY(file.get(), nullptr, no_pass_phrase, nullptr), EVP_PKEY_free);
        if (key == nullptr) {
            break;
        }
        count++;
        const Json jwk = jwk_of_public(key.get());
        json_object_set_new(jwk.get(), "alg", json_string(name.c_str()));
        if (!jwk || (EVP_PKEY_get_base_id(key.get()) == EVP_PKEY_RSA_PSS && name[0] != 'P')) {
            wrong = "it is of a kind that signs no such tokens";
        } else {
            wrong = add_jwk(jwk.get(), leeway);
        }
    }
    ERR_clear_error();
    if (!wrong.empty()) {
        return "has a key that does not fit: " + wrong + "; it must be a public key for " + name;
    }
    if (count == 0 || count != count_of(content, kPemMark)) {
        return "is not a public key in PEM; for " + name +
               ", it must be a file with \"-----BEGIN PUBLIC KEY-----\" and nothing else in PEM";
    }
    return {};
}

std::string SigningKeys::add(std::string_view algorithm, std::string_view content, double leeway) {
    const Algorithm* known = find_algorithm(algorithm);
    if (known == nullptr) {
        return std::string("is for an unknown algorithm; it must be ") + kAlgorithmsAccepted;
    }
    return known->type == JWK_KEY_TYPE_OCT ? add_secret(known->id, content, leeway)
                                           : add_public(known->id, content, leeway);
}

std::string SigningKeys::add_set(std::string_view content, double leeway, std::vector<std::string>* ignored) {
    constexpr char kAccepted[] = "; it must be a JSON Web Key Set with a key that verifies signatures";
    const Json set = parse_object(reinterpret_cast<const unsigned char*>(content.data()), content.size());
    const json_t* keys = json_object_get(set.get(), "keys");
    if (!json_is_array(keys)) {
        return std::string("is not a key set, an object with an array \"keys\"") + kAccepted;
    }
    bool added = false;
    for (std::size_t i = 0; i < json_array_size(keys); i++) {
        const json_t* jwk = json_array_get(keys, i);
        const std::string why = add_jwk(jwk, leeway);
        if (why.empty()) {
            added = true;
            continue;
        }
        const char* id = json_string_value(json_object_get(jwk, "kid"));
        ignored->push_back("key " + std::to_string(i + 1) +
                           (id != nullptr ? " (\"" + printable(id) + "\")" : std::string()) + ": " + why);
    }
    if (!added) {
        const std::string why = ignored->empty() ? "it is empty" : ignored->front();
        ignored->clear();
        return "has no key that can be used: " + why + kAccepted;
    }
    return {};
}

const char* SigningKeys::crowded(std::size_t most) const {
    for (const Algorithm& algorithm : kAlgorithms) {
        const auto fits = [&](const Key& key) { return key.algorithm == algorithm.id; };
        if (static_cast<std::size_t>(std::count_if(keys_.begin(), keys_.end(), fits)) > most) {
            return jwt_alg_str(algorithm.id);
        }
    }
    return nullptr;
}

}  // namespace rate_limit::identity
