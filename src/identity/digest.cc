// SHA-256 by the deprecated interface of OpenSSL: the present one allocates for each digest.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "identity/digest.h"

#include <openssl/sha.h>

namespace rate_limit::identity {

Digest digest_of(std::string_view token) {
    static_assert(sizeof(Digest) == SHA256_DIGEST_LENGTH, "a digest is one of SHA-256");
    Digest digest;
    SHA256_CTX context;
    SHA256_Init(&context);
    SHA256_Update(&context, token.data(), token.size());
    SHA256_Final(digest.bytes, &context);
    return digest;
}

}  // namespace rate_limit::identity
