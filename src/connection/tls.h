// TLS to Redis: which certificates are trusted, and which one is sent.
#pragma once

#include <string>

struct ssl_ctx_st;
struct ssl_st;

namespace rate_limit::redis {

struct TlsFiles {
    std::string ca;           // trusted certificates; empty: those of the system
    std::string certificate;  // of this client; empty for none
    std::string key;          // of the certificate
    bool verify = true;       // whether the certificate of the server is verified
};

// A context, which the caller frees. Null if a file cannot be used; `*wrong` is then the reason, without a
// full stop.
ssl_ctx_st* make_tls(const TlsFiles& files, std::string* wrong);
void free_tls(ssl_ctx_st* tls);

// The session of a connection. The certificate of the server must be for `name`, a host name or a numeric
// address; empty for any. Null if memory is exhausted. The caller frees it, unless hiredis has taken it over.
ssl_st* make_session(ssl_ctx_st* tls, const std::string& name);
void free_session(ssl_st* session);

// Why the certificate of the server was rejected; null if it was not.
const char* verify_error(const ssl_st* session);

// Whether the TLS handshake is complete.
bool handshake_done(const ssl_st* session);

// Whether the last error in TLS is that the received data is not TLS.
bool was_not_tls();

// The last error in TLS; null if there is none.
const char* tls_error();

// Clears the error queue of OpenSSL. nginx shares the queue, and would take errors in it for its own.
void forget_tls_errors();

}  // namespace rate_limit::redis
