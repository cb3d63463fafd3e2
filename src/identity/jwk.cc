// Writes keys as JSON, and checks such JSON.
#include "identity/jwk.h"

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/x509.h>

#include <algorithm>
#include <vector>

#include "identity/base64url.h"
#include "identity/signing_keys.h"

namespace rate_limit::identity {
namespace {

// A number of a key with at least the given number of bytes.
std::string number_of(const EVP_PKEY* key, const char* name, std::size_t size) {
    BIGNUM* number = nullptr;
    if (EVP_PKEY_get_bn_param(key, name, &number) != 1) {
        return {};
    }
    std::vector<unsigned char> bytes(std::max(size, static_cast<std::size_t>(BN_num_bytes(number))));
    BN_bn2binpad(number, bytes.data(), static_cast<int>(bytes.size()));
    BN_free(number);
    return encode_base64url(bytes.data(), bytes.size());
}

json_t* describe_rsa(const EVP_PKEY* key) {
    return json_pack("{ss ss ss}", "kty", "RSA", "n", number_of(key, OSSL_PKEY_PARAM_RSA_N, 0).c_str(), "e",
                     number_of(key, OSSL_PKEY_PARAM_RSA_E, 0).c_str());
}

json_t* describe_curve(const EVP_PKEY* key) {
    constexpr struct {
        std::string_view group;
        const char* curve;
        std::size_t size;  // bytes of a coordinate
    } kCurves[] = {{"prime256v1", "P-256", 32}, {"secp384r1", "P-384", 48}, {"secp521r1", "P-521", 66}};
    char group[64] = {};
    EVP_PKEY_get_group_name(key, group, sizeof(group), nullptr);
    for (const auto& known : kCurves) {
        if (known.group == group) {
            return json_pack("{ss ss ss ss}", "kty", "EC", "crv", known.curve, "x",
                             number_of(key, OSSL_PKEY_PARAM_EC_PUB_X, known.size).c_str(), "y",
                             number_of(key, OSSL_PKEY_PARAM_EC_PUB_Y, known.size).c_str());
        }
    }
    return nullptr;
}

json_t* describe_edwards(const EVP_PKEY* key, const char* curve) {
    unsigned char bytes[64];
    std::size_t size = sizeof(bytes);
    EVP_PKEY_get_raw_public_key(key, bytes, &size);
    return json_pack("{ss ss ss}", "kty", "OKP", "crv", curve, "x", encode_base64url(bytes, size).c_str());
}

std::string_view text_of(const json_t* jwk, const char* name) {
    const json_t* value = json_object_get(jwk, name);
    return json_is_string(value) ? std::string_view(json_string_value(value), json_string_length(value))
                                 : std::string_view();
}

// A number or secret of a JSON key, as bytes; none if it is not base64url, of which libjwt accepts more.
std::string bytes_of(const json_t* jwk, const char* name) {
    unsigned char bytes[kLongestEncoded];
    std::size_t size = 0;
    return decode_base64url(text_of(jwk, name), bytes, &size)
               ? std::string(reinterpret_cast<const char*>(bytes), size)
               : std::string();
}

bool may_verify(const json_t* jwk) {
    const json_t* operations = json_object_get(jwk, "key_ops");
    if (operations == nullptr) {
        return true;
    }
    for (std::size_t i = 0; i < json_array_size(operations); i++) {
        const json_t* operation = json_array_get(operations, i);
        if (json_is_string(operation) && std::string_view(json_string_value(operation)) == "verify") {
            return true;
        }
    }
    return false;
}

// With the exponent 1 anyone could sign; an even exponent is invalid.
bool is_exponent(std::string bytes) {
    bytes.erase(0, bytes.find_first_not_of('\0'));
    return !bytes.empty() && (bytes.back() & 1) != 0 && (bytes.size() > 1 || bytes[0] != 1);
}

}  // namespace

Json jwk_of_secret(std::string_view secret) {
    const std::string encoded =
        encode_base64url(reinterpret_cast<const unsigned char*>(secret.data()), secret.size());
    return Json(json_pack("{ss ss}", "kty", "oct", "k", encoded.c_str()));
}

Json jwk_of_public(const EVP_PKEY* key) {
    switch (EVP_PKEY_get_base_id(key)) {
        case EVP_PKEY_RSA:
        case EVP_PKEY_RSA_PSS:
            return Json(describe_rsa(key));
        case EVP_PKEY_EC:
            return Json(describe_curve(key));
        case EVP_PKEY_ED25519:
            return Json(describe_edwards(key, "Ed25519"));
        case EVP_PKEY_ED448:
            return Json(describe_edwards(key, "Ed448"));
        default:
            return {};
    }
}

std::string why_unused(const json_t* jwk) {
    if (!json_is_object(jwk)) {
        return "it is not an object";
    }
    if (json_object_get(jwk, "kid") != nullptr && !json_is_string(json_object_get(jwk, "kid"))) {
        return "its kid is not a text";
    }
    if ((json_object_get(jwk, "use") != nullptr && text_of(jwk, "use") != "sig") || !may_verify(jwk)) {
        return "it is not meant to verify signatures";
    }
    if (json_object_get(jwk, "alg") != nullptr && !is_algorithm(text_of(jwk, "alg"))) {
        return "its algorithm is none that signs tokens here";
    }
    if (text_of(jwk, "kty") == "RSA" && !is_exponent(bytes_of(jwk, "e"))) {
        return "its exponent is not one";
    }
    const std::string secret = bytes_of(jwk, "k");
    if (text_of(jwk, "kty") == "oct" && (secret.empty() || looks_public(secret))) {
        return secret.empty() ? "its secret is not in base64url" : "its secret is a public key";
    }
    return {};
}

bool looks_public(std::string_view text) {
    const std::size_t start = text.find_first_not_of(" \t\r\n");
    const std::string_view begin = start != std::string_view::npos ? text.substr(start) : std::string_view();
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    EVP_PKEY* key = d2i_PUBKEY(nullptr, &bytes, static_cast<long>(text.size()));
    EVP_PKEY_free(key);
    ERR_clear_error();
    return key != nullptr || text.find(kPemMark) != std::string_view::npos || begin.substr(0, 1) == "{" ||
           begin.substr(0, 4) == "ssh-" || begin.substr(0, 6) == "ecdsa-";
}

}  // namespace rate_limit::identity
