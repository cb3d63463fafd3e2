// The keys that a token may be signed with, as a configuration names them.
#pragma once

#include <jwt.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "identity/claims.h"

namespace rate_limit::identity {

// A key and one algorithm that it may be used with: a token that names another is not even tried.
struct Key {
    struct Free {
        void operator()(jwt_checker_t* checker) const { jwt_checker_free(checker); }
    };

    jwt_alg_t algorithm;
    std::string id;  // `kid`; empty if it has none
    double leeway;   // seconds by which the clocks may differ
    std::unique_ptr<jwt_checker_t, Free> checker;
};

// All of this is called only while a configuration is read. The keys of one configuration or server.
class Keys {
  public:
    // Adds the key of an algorithm such as RS256: a secret for HS256 to HS512, else a public key in PEM.
    // Empty, or what is wrong with `content` and what is accepted.
    std::string add(std::string_view algorithm, std::string_view content, double leeway);

    // Adds those of a JSON Web Key Set that can verify a token; says of each other one in `*ignored` why not.
    std::string add_set(std::string_view content, double leeway, std::vector<std::string>* ignored);

    const std::vector<Key>& all() const { return keys_; }

    // The name of an algorithm that more than `most` keys are for; null if there is none.
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

// Whether tokens can be signed with an algorithm of this name; `none` is not one.
bool is_algorithm(std::string_view name);

// Their names, for messages.
extern const char kAlgorithmsAccepted[];

}  // namespace rate_limit::identity
