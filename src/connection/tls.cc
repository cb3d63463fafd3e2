// Configures OpenSSL. hiredis does not verify the name in a certificate, so this file does.
#include "connection/tls.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "connection/resolver.h"

namespace rate_limit::redis {
namespace {

std::string reason(const char* what, const std::string& file) {
    const char* why = ERR_reason_error_string(ERR_peek_last_error());
    return std::string(what) + " \"" + file +
           "\" cannot be used: " + (why != nullptr ? why : "unknown error");
}

// Whether a file can be read. The error of OpenSSL for a missing file is "system lib", and OpenSSL blocks on
// a pipe.
bool is_readable(const char* what, const std::string& file, std::string* wrong) {
    struct stat info = {};
    const int fd = open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    const bool found = fd >= 0 && fstat(fd, &info) == 0;
    const int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (!found || !S_ISREG(info.st_mode)) {
        *wrong = std::string(what) + " \"" + file +
                 "\" cannot be used: " + (found ? "it is not a regular file" : std::strerror(error));
    }
    return wrong->empty();
}

bool are_readable(const TlsFiles& files, std::string* wrong) {
    return (files.ca.empty() || is_readable("ca=", files.ca, wrong)) &&
           (files.certificate.empty() ||
            (is_readable("cert=", files.certificate, wrong) && is_readable("key=", files.key, wrong)));
}

bool load_files(SSL_CTX* tls, const TlsFiles& files, std::string* wrong) {
    if (!are_readable(files, wrong)) {
        return false;
    }
    if (files.ca.empty()) {
        SSL_CTX_set_default_verify_paths(tls);
    } else if (SSL_CTX_load_verify_locations(tls, files.ca.c_str(), nullptr) != 1) {
        *wrong = reason("ca=", files.ca);
        return false;
    }
    if (files.certificate.empty()) {
        return true;
    }
    if (SSL_CTX_use_certificate_chain_file(tls, files.certificate.c_str()) != 1) {
        *wrong = reason("cert=", files.certificate);
        return false;
    }
    if (SSL_CTX_use_PrivateKey_file(tls, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
        *wrong = reason("key=", files.key);
        return false;
    }
    return true;
}

}  // namespace

SSL_CTX* make_tls(const TlsFiles& files, std::string* wrong) {
    SSL_CTX* tls = SSL_CTX_new(TLS_client_method());
    if (tls == nullptr) {
        *wrong = "TLS cannot be set up";
        return nullptr;
    }
    SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE);
    SSL_CTX_set_verify(tls, files.verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
    if (!load_files(tls, files, wrong)) {
        SSL_CTX_free(tls);
        tls = nullptr;
    }
    ERR_clear_error();
    return tls;
}

void free_tls(SSL_CTX* tls) { SSL_CTX_free(tls); }

SSL* make_session(SSL_CTX* tls, const std::string& name) {
    SSL* session = SSL_new(tls);
    if (session == nullptr || name.empty()) {
        return session;
    }
    bool named = false;
    if (is_numeric(name)) {
        named = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), name.c_str()) == 1;
    } else {
        SSL_set_hostflags(session, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
        named =
            SSL_set_tlsext_host_name(session, name.c_str()) == 1 && SSL_set1_host(session, name.c_str()) == 1;
    }
    if (!named) {
        SSL_free(session);
        return nullptr;
    }
    return session;
}

void free_session(SSL* session) { SSL_free(session); }

const char* verify_error(const SSL* session) {
    if (SSL_get_verify_mode(session) == SSL_VERIFY_NONE) {
        return nullptr;
    }
    const long result = SSL_get_verify_result(session);
    return result == X509_V_OK ? nullptr : X509_verify_cert_error_string(result);
}

bool handshake_done(const SSL* session) { return SSL_is_init_finished(session) == 1; }

bool was_not_tls() {
    const unsigned long error = ERR_peek_last_error();
    const int why = ERR_GET_REASON(error);
    return ERR_GET_LIB(error) == ERR_LIB_SSL &&
           (why == SSL_R_WRONG_VERSION_NUMBER || why == SSL_R_PACKET_LENGTH_TOO_LONG);
}

const char* tls_error() { return ERR_reason_error_string(ERR_peek_last_error()); }

void forget_tls_errors() { ERR_clear_error(); }

}  // namespace rate_limit::redis
