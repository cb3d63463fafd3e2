// Keys as members of a JSON Web Key Set, the only form that libjwt accepts.
#pragma once

#include <openssl/evp.h>

#include <string>
#include <string_view>

#include "identity/claims.h"

namespace rate_limit::identity {

// These functions allocate: only for the configuration.

Json jwk_of_secret(std::string_view secret);

// Empty if tokens cannot be signed with keys of this type.
Json jwk_of_public(const EVP_PKEY* key);

// Why a member of a key set must not be used; empty if it may be used. Does not repeat the checks of libjwt.
std::string why_unused(const json_t* jwk);

// Whether a text looks like a public key, a certificate or a key set in any common form. Such a text is not
// secret: used as one, it would allow others to sign.
bool looks_public(std::string_view text);

// The first characters of each part of a PEM file.
constexpr std::string_view kPemMark = "-----BEGIN ";

}  // namespace rate_limit::identity
