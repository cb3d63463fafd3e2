// The keys of the configuration, which verify tokens.
#pragma once

#include <jwt.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "identity/claims.h"

namespace rate_limit::identity {

// A key for one algorithm. A token of another algorithm is not verified with it.
struct Key {
    struct Free {
        void operator()(jwt_checker_t* checker) const { jwt_checker_free(checker); }
    };

    jwt_alg_t algorithm;
    std::string id;              // `kid`; empty if it has none
    double leeway;               // seconds by which the clocks may differ
    std::size_t signature_size;  // bytes, for RSA only; 0 for others, whose size libjwt checks
    std::unique_ptr<jwt_checker_t, Free> checker;
};

// The keys of one configuration block. Changed only while the configuration is read.
class SigningKeys {
  public:
    // Adds the key of an algorithm such as RS256: a secret for HS256 to HS512, else a public key in PEM.
    // Returns nothing, or what is wrong with `content` and what is accepted.
    std::string add(std::string_view algorithm, std::string_view content, double leeway);

    // Adds the keys of a JSON Web Key Set that can verify tokens; adds to `*ignored` why others cannot.
    std::string add_set(std::string_view content, double leeway, std::vector<std::string>* ignored);

    const std::vector<Key>& all() const { return keys_; }

    // The name of an algorithm with more than `most` keys; null if there is none.
    const char* crowded(std::size_t most) const;

  private:
    struct Free {
        void operator()(jwk_set_t* set) const { jwks_free(set); }
    };
    using Set = std::unique_ptr<jwk_set_t, Free>;

    std::string add_secret(jwt_alg_t algorithm, std::string_view content, double leeway);
    std::string add_public(jwt_alg_t algorithm, std::string_view content, double leeway);
    std::string add_jwk(const json_t* jwk, double leeway);
    bool add_checker(const jwk_item_t* item, jwt_alg_t algorithm, double leeway);

    std::vector<Set> sets_;
    std::vector<Key> keys_;
};

// Whether the name is a supported algorithm; `none` is not.
bool is_algorithm(std::string_view name);

// The names of the algorithms, for messages.
extern const char kAlgorithmsAccepted[];

}  // namespace rate_limit::identity
