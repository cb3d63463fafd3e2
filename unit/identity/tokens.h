// Keys and tokens made with OpenSSL only: signing shares no code with verification.
#pragma once

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace rate_limit::identity {

// Without cmocka, so that benchmarks and fuzzing may use all of this.
inline void must(bool good, const char* what) {
    if (!good) {
        std::fprintf(stderr, "tokens.h: %s failed\n", what);
        std::abort();
    }
}

inline const unsigned char* bytes_of(std::string_view text) {
    return reinterpret_cast<const unsigned char*>(text.data());
}

inline std::string base64url(std::string_view bytes) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    std::string text;
    unsigned bits = 0;
    unsigned held = 0;
    for (const unsigned char byte : bytes) {
        held = held << 8 | byte;
        for (bits += 8; bits >= 6; bits -= 6) {
            text += letters[held >> (bits - 6) & 63];
        }
    }
    if (bits != 0) {
        text += letters[held << (6 - bits) & 63];
    }
    return text;
}

inline std::string quoted(std::string_view name, std::string_view value) {
    return "\"" + std::string(name) + "\":\"" + std::string(value) + "\"";
}

// A secret or a private key.
class Signer {
  public:
    static Signer secret(std::string_view bytes) {
        Signer signer;
        signer.secret_ = bytes;
        return signer;
    }

    static Signer rsa(unsigned bits) {
        return Signer(EVP_PKEY_Q_keygen(nullptr, nullptr, "RSA", std::size_t{bits}));
    }

    // A key that is restricted to PS256, PS384 and PS512.
    static Signer rsa_pss() {
        const std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)> context(
            EVP_PKEY_CTX_new_from_name(nullptr, "RSA-PSS", nullptr), EVP_PKEY_CTX_free);
        EVP_PKEY* key = nullptr;
        must(EVP_PKEY_keygen_init(context.get()) == 1 && EVP_PKEY_generate(context.get(), &key) == 1,
             "RSA-PSS");
        return Signer(key);
    }

    // P-256, P-384, P-521 or secp256k1.
    static Signer ec(const char* curve) { return Signer(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", curve)); }

    // Keys without parameters: ED25519, ED448, X25519, X448.
    static Signer of_type(const char* type) { return Signer(EVP_PKEY_Q_keygen(nullptr, nullptr, type)); }

    // The signature of a token of this algorithm; for "ES256" and similar, r and s of fixed size.
    std::string sign(std::string_view algorithm, std::string_view input) const {
        const std::string_view family = algorithm.substr(0, 2);
        if (family == "HS") {
            return hmac(algorithm, input);
        }
        const std::string signature = evp_sign(algorithm, input);
        return family == "ES" ? fixed(signature) : signature;
    }

    // The same before r and s are taken out of their ASN.1.
    std::string sign_as_der(std::string_view algorithm, std::string_view input) const {
        return evp_sign(algorithm, input);
    }

    std::string public_pem() const {
        return pem([&](BIO* bio) { return PEM_write_bio_PUBKEY(bio, key_.get()); });
    }

    std::string private_pem() const {
        return pem([&](BIO* bio) {
            return PEM_write_bio_PrivateKey(bio, key_.get(), nullptr, nullptr, 0, nullptr, nullptr);
        });
    }

    // -----BEGIN RSA PUBLIC KEY-----
    std::string pkcs1_pem() const {
        unsigned char* der = nullptr;
        const int size = i2d_PublicKey(key_.get(), &der);
        must(size > 0, "i2d_PublicKey");
        const std::string text =
            pem([&](BIO* bio) { return PEM_write_bio(bio, "RSA PUBLIC KEY", "", der, size) > 0 ? 1 : 0; });
        OPENSSL_free(der);
        return text;
    }

    std::string public_der() const {
        unsigned char* der = nullptr;
        const int size = i2d_PUBKEY(key_.get(), &der);
        must(size > 0, "i2d_PUBKEY");
        const std::string bytes(reinterpret_cast<char*>(der), static_cast<std::size_t>(size));
        OPENSSL_free(der);
        return bytes;
    }

    const std::string& secret_bytes() const { return secret_; }

    // A JSON Web Key, public or secret, with `more` members such as "kid":"a".
    std::string jwk(std::string_view more = "") const {
        return "{" + members() + (more.empty() ? "" : ",") + std::string(more) + "}";
    }

    std::string private_jwk(std::string_view more = "") const {
        std::string all = quoted(
            "d", base64url(is("RSA") || is("EC") ? number("RSA" == type() ? "d" : "priv") : octets("priv")));
        if (is("RSA")) {
            const char* const names[][2] = {{"p", OSSL_PKEY_PARAM_RSA_FACTOR1},
                                            {"q", OSSL_PKEY_PARAM_RSA_FACTOR2},
                                            {"dp", OSSL_PKEY_PARAM_RSA_EXPONENT1},
                                            {"dq", OSSL_PKEY_PARAM_RSA_EXPONENT2},
                                            {"qi", OSSL_PKEY_PARAM_RSA_COEFFICIENT1}};
            for (const auto& name : names) {
                all += "," + quoted(name[0], base64url(number(name[1])));
            }
        }
        return jwk(all + (more.empty() ? "" : ",") + std::string(more));
    }

    // A number of the public or private key, big-endian; padded to the size of the curve, if any.
    std::string number(const char* name) const {
        BIGNUM* value = nullptr;
        must(EVP_PKEY_get_bn_param(key_.get(), name, &value) == 1, name);
        const std::size_t size = is("EC") ? field_size() : static_cast<std::size_t>(BN_num_bytes(value));
        std::string bytes(size, '\0');
        must(BN_bn2binpad(value, reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(size)) > 0,
             "BN_bn2binpad");
        BN_free(value);
        return bytes;
    }

  private:
    Signer() = default;
    explicit Signer(EVP_PKEY* key) : key_(key, EVP_PKEY_free) { must(key != nullptr, "making a key"); }

    std::string_view type() const { return EVP_PKEY_get0_type_name(key_.get()); }
    bool is(std::string_view name) const { return type() == name; }
    std::size_t field_size() const { return static_cast<std::size_t>(EVP_PKEY_get_bits(key_.get()) + 7) / 8; }

    std::string octets(const char* name) const {
        unsigned char bytes[128];
        std::size_t size = 0;
        must(EVP_PKEY_get_octet_string_param(key_.get(), name, bytes, sizeof(bytes), &size) == 1, name);
        return {reinterpret_cast<char*>(bytes), size};
    }

    std::string members() const {
        if (!key_) {
            return quoted("kty", "oct") + "," + quoted("k", base64url(secret_));
        }
        if (is("RSA")) {
            return quoted("kty", "RSA") + "," + quoted("n", base64url(number("n"))) + "," +
                   quoted("e", base64url(number("e")));
        }
        if (is("EC")) {
            const char* curve = field_size() == 66 ? "P-521" : field_size() == 48 ? "P-384" : "P-256";
            char group[64] = "";
            std::size_t size = 0;
            EVP_PKEY_get_group_name(key_.get(), group, sizeof(group), &size);
            if (std::string_view(group) == "secp256k1") {
                curve = group;
            }
            return quoted("kty", "EC") + "," + quoted("crv", curve) + "," +
                   quoted("x", base64url(number("qx"))) + "," + quoted("y", base64url(number("qy")));
        }
        const char* curve = is("ED25519") ? "Ed25519" : is("ED448") ? "Ed448" : "X25519";
        return quoted("kty", "OKP") + "," + quoted("crv", curve) + "," +
               quoted("x", base64url(octets("pub")));
    }

    static const EVP_MD* digest(std::string_view algorithm) {
        const std::string_view bits = algorithm.substr(2);
        return bits == "256" ? EVP_sha256() : bits == "384" ? EVP_sha384() : EVP_sha512();
    }

    std::string hmac(std::string_view algorithm, std::string_view input) const {
        unsigned char mac[EVP_MAX_MD_SIZE];
        unsigned size = 0;
        must(HMAC(digest(algorithm), secret_.data(), static_cast<int>(secret_.size()), bytes_of(input),
                  input.size(), mac, &size) != nullptr,
             "HMAC");
        return {reinterpret_cast<char*>(mac), size};
    }

    std::string evp_sign(std::string_view algorithm, std::string_view input) const {
        const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                              EVP_MD_CTX_free);
        EVP_PKEY_CTX* options = nullptr;
        const EVP_MD* md = algorithm == "EdDSA" ? nullptr : digest(algorithm);
        must(EVP_DigestSignInit(context.get(), &options, md, nullptr, key_.get()) == 1, "EVP_DigestSignInit");
        if (algorithm.substr(0, 2) == "PS") {
            must(EVP_PKEY_CTX_set_rsa_padding(options, RSA_PKCS1_PSS_PADDING) == 1 &&
                     EVP_PKEY_CTX_set_rsa_pss_saltlen(options, RSA_PSS_SALTLEN_DIGEST) == 1,
                 "setting PSS");
        }
        unsigned char signature[1024];
        std::size_t size = sizeof(signature);
        must(EVP_DigestSign(context.get(), signature, &size, bytes_of(input), input.size()) == 1,
             "EVP_DigestSign");
        return {reinterpret_cast<char*>(signature), size};
    }

    std::string fixed(const std::string& der) const {
        const unsigned char* at = bytes_of(der);
        const std::unique_ptr<ECDSA_SIG, decltype(&ECDSA_SIG_free)> pair(
            d2i_ECDSA_SIG(nullptr, &at, static_cast<long>(der.size())), ECDSA_SIG_free);
        must(pair != nullptr, "d2i_ECDSA_SIG");
        const std::size_t size = field_size();
        std::string both(2 * size, '\0');
        auto* out = reinterpret_cast<unsigned char*>(both.data());
        must(BN_bn2binpad(ECDSA_SIG_get0_r(pair.get()), out, static_cast<int>(size)) > 0 &&
                 BN_bn2binpad(ECDSA_SIG_get0_s(pair.get()), out + size, static_cast<int>(size)) > 0,
             "BN_bn2binpad");
        return both;
    }

    template <typename Write>
    static std::string pem(Write write) {
        const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), BIO_free);
        must(write(bio.get()) == 1, "writing PEM");
        char* text = nullptr;
        const long size = BIO_get_mem_data(bio.get(), &text);
        return {text, static_cast<std::size_t>(size)};
    }

    std::shared_ptr<EVP_PKEY> key_;
    std::string secret_;
};

// Keys that are made when they are first asked for, once in a program.
inline const Signer& secret_key() {
    static const Signer key =
        Signer::secret("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    return key;
}
inline const Signer& rsa_key() {
    static const Signer key = Signer::rsa(2048);
    return key;
}
inline const Signer& other_rsa_key() {
    static const Signer key = Signer::rsa(2048);
    return key;
}
inline const Signer& p256_key() {
    static const Signer key = Signer::ec("P-256");
    return key;
}
inline const Signer& p384_key() {
    static const Signer key = Signer::ec("P-384");
    return key;
}
inline const Signer& p521_key() {
    static const Signer key = Signer::ec("P-521");
    return key;
}
inline const Signer& ed25519_key() {
    static const Signer key = Signer::of_type("ED25519");
    return key;
}
inline const Signer& ed448_key() {
    static const Signer key = Signer::of_type("ED448");
    return key;
}

// An algorithm and a key for it.
struct Kind {
    const char* algorithm;
    const Signer& (*signer)();

    bool symmetric() const { return algorithm[0] == 'H'; }
    // The content of a file for the directive rate_limit_jwt_key.
    std::string file() const { return symmetric() ? signer().secret_bytes() : signer().public_pem(); }
};

constexpr Kind kEveryKind[] = {
    {"HS256", secret_key},  {"HS384", secret_key}, {"HS512", secret_key}, {"RS256", rsa_key},
    {"RS384", rsa_key},     {"RS512", rsa_key},    {"PS256", rsa_key},    {"PS384", rsa_key},
    {"PS512", rsa_key},     {"ES256", p256_key},   {"ES384", p384_key},   {"ES512", p521_key},
    {"EdDSA", ed25519_key}, {"EdDSA", ed448_key},
};

// The parts of a token, of any text.
inline std::string signed_token(std::string_view header, std::string_view claims, const Signer& signer,
                                std::string_view algorithm) {
    const std::string input = base64url(header) + "." + base64url(claims);
    return input + "." + base64url(signer.sign(algorithm, input));
}

// A header with an algorithm and `more` members such as "kid":"a".
inline std::string header_of(std::string_view algorithm, std::string_view more = "") {
    return "{" + quoted("alg", algorithm) + (more.empty() ? "" : ",") + std::string(more) + "}";
}

inline std::string token_of(const Kind& kind, std::string_view claims, std::string_view more = "") {
    return signed_token(header_of(kind.algorithm, more), claims, kind.signer(), kind.algorithm);
}

// The key of most tests: fast and constant.
inline std::string hs256(std::string_view claims, std::string_view more = "") {
    return token_of(kEveryKind[0], claims, more);
}

inline std::string set_of(const std::vector<std::string>& keys) {
    std::string text = R"({"keys":[)";
    for (const std::string& key : keys) {
        text += (&key == &keys.front() ? "" : ",") + key;
    }
    return text + "]}";
}

}  // namespace rate_limit::identity
