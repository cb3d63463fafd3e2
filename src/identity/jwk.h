// Keys as members of a JSON Web Key Set, the one form that libjwt takes.
#pragma once

#include <openssl/evp.h>

#include <string>
#include <string_view>

#include "identity/claims.h"

namespace rate_limit::identity {

// Only while a configuration is read: all of this allocates.

Json jwk_of_secret(std::string_view secret);

// Empty if the key is of a kind that signs no tokens.
Json jwk_of_public(const EVP_PKEY* key);

// Why a member of a key set is not to be used; empty if it may be. What libjwt checks itself is left to it.
std::string why_unused(const json_t* jwk);

// Whether a text looks like something that its owner shows to others: a public key, a certificate or a key
// set in any common form. Who knew it could sign if it were taken for a secret.
bool looks_public(std::string_view text);

// The beginning of each part of a file in PEM.
constexpr std::string_view kPemMark = "-----BEGIN ";

}  // namespace rate_limit::identity
