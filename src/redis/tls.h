// TLS to Redis: which certificates are believed and which are shown.
#pragma once

#include <string>

struct ssl_ctx_st;
struct ssl_st;

namespace rate_limit::redis {

struct TlsFiles {
    std::string ca;           // empty: the system's
    std::string certificate;  // empty: none is shown
    std::string key;
    bool verify = true;
};

// Null, with `*wrong` a sentence without a full stop, if a file cannot be used.
ssl_ctx_st* make_tls(const TlsFiles& files, std::string* wrong);
void free_tls(ssl_ctx_st* tls);

// A connection's part, for a server that must prove to be `name`, a host name or an address. Null if there is
// no memory.
ssl_st* make_session(ssl_ctx_st* tls, const std::string& name);
void free_session(ssl_st* session);

// Why the server's certificate was not believed; null if it was.
const char* verify_error(const ssl_st* session);

// Whether both sides have agreed on how to speak.
bool handshake_done(const ssl_st* session);

// Whether the last error in TLS is that what came was not TLS.
bool was_not_tls();

// What last went wrong in TLS; null if nothing is known.
const char* tls_error();

// OpenSSL keeps errors in a queue of the thread's, where nginx would take ours for its own.
void forget_tls_errors();

}  // namespace rate_limit::redis
