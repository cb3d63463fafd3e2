// Connects by hiredis, performs the handshake, and explains failures.
#include "connection/connection.h"

#include <hiredis/async.h>
#include <hiredis/hiredis_ssl.h>

#include <cerrno>
#include <initializer_list>

#include "connection/command.h"
#include "connection/tls.h"

namespace rate_limit::redis {
namespace {

constexpr int kKeepAlive = 15;  // seconds

Connection* owner_of(const redisAsyncContext* context) { return static_cast<Connection*>(context->data); }

// The first byte of a TLS alert, as hiredis names it.
constexpr std::string_view kTlsAlert = "got \"\\x15\"";

std::string_view error_of(const redisReply& reply) {
    return reply.type == REDIS_REPLY_ERROR ? std::string_view(reply.str, reply.len) : std::string_view();
}

std::string_view error_text(const redisAsyncContext* context) {
    return context->errstr != nullptr && context->errstr[0] != '\0' ? context->errstr : context->c.errstr;
}

bool was_hung_up(const redisAsyncContext* context) {
    return context->c.err == REDIS_ERR_EOF || context->c.err == REDIS_ERR_IO;
}

}  // namespace

bool Connection::open(const Endpoint::Target& target, std::string* line) {
    redisOptions options = {};
    if (settings_.address.path.empty()) {
        REDIS_OPTIONS_SET_TCP(&options, target.address.c_str(), target.port);
        // A numeric address has one family. With this option hiredis tries only once.
        options.options |= REDIS_OPT_PREFER_IP_UNSPEC;
    } else {
        REDIS_OPTIONS_SET_UNIX(&options, target.address.c_str());
    }
    redisAsyncContext* context = redisAsyncConnectWithOptions(&options);
    if (context == nullptr || context->err != 0 || !loop_->attach(context)) {
        *line = context != nullptr && context->err != 0 ? context->errstr
                                                        : "no memory, or no worker_connections left";
        redisAsyncFree(context);
        return false;
    }
    context->data = this;
    context->c.reader->maxelements = settings_.most_elements;
    guard_.most = settings_.most_reply;
    guard_.watch(context);
    server_name_ = settings_.server_name.empty() ? target.name : settings_.server_name;
    context_ = context;
    session_ = nullptr;
    ready_ = false;
    unanswered_ = 0;
    redisAsyncSetConnectCallbackNC(context, on_connect);
    redisAsyncSetDisconnectCallback(context, on_disconnect);
    return true;
}

void Connection::close() {
    redisAsyncContext* context = context_;
    context_ = nullptr;
    ready_ = false;
    if (context != nullptr) {
        context->data = nullptr;
        redisAsyncFree(context);
    }
}

bool Connection::send(std::string_view command, Reply reply, void* self) {
    return redisAsyncFormattedCommand(context_, reply, self, command.data(), command.size()) == REDIS_OK;
}

bool Connection::subscribe(std::string_view channel, Reply reply, void* self) {
    guard_.channel = channel;
    return send(format_command({"SUBSCRIBE", channel}), reply, self);
}

bool Connection::load_script() { return send_words({"SCRIPT", "LOAD", settings_.script}, nullptr); }

std::string_view Connection::awaited() const {
    if (context_ == nullptr) {
        return "not connected";
    }
    if ((context_->c.flags & REDIS_CONNECTED) == 0) {
        return "the connection was not accepted";
    }
    if (session_ != nullptr && !handshake_done(session_)) {
        return "the TLS handshake was not answered: does this port require redis://?";
    }
    return "connected, but the first command was not answered";
}

Error Connection::loss(const redisAsyncContext* context) {
    return context->c.err == REDIS_ERR_PROTOCOL || refusal(context) != nullptr ? Error::kProtocol
                                                                               : Error::kClosed;
}

std::string_view Connection::loss_line(const redisAsyncContext* context) {
    if (const char* refused = refusal(context)) {
        return refused;
    }
    return context->c.err != 0 ? error_text(context) : "the connection was lost before the reply";
}

// Why a reply was refused; null if none was.
const char* Connection::refusal(const redisAsyncContext* context) {
    const Connection* self = owner_of(context);
    return self != nullptr ? self->guard_.refused : nullptr;
}

bool Connection::send_words(std::initializer_list<std::string_view> words, Reply reply) {
    constexpr std::size_t kMostWords = 4;
    const char* texts[kMostWords];
    std::size_t sizes[kMostWords];
    int count = 0;
    for (const std::string_view word : words) {
        texts[count] = word.data();
        sizes[count++] = word.size();
    }
    return redisAsyncCommandArgv(context_, reply, this, count, texts, sizes) == REDIS_OK;
}

// False on failure; `*untrusted` is then the reason, if the certificate was rejected.
bool Connection::start_tls(const char** untrusted) {
    session_ = make_session(settings_.tls, server_name_);
    if (session_ == nullptr || redisInitiateSSL(&context_->c, session_) != REDIS_OK) {
        *untrusted = session_ != nullptr ? verify_error(session_) : nullptr;
        free_session(session_);
        session_ = nullptr;
    }
    guard_.watch_reads();
    forget_tls_errors();
    return session_ != nullptr;
}

bool Connection::gives_password() const {
    return !settings_.address.password.empty() || !settings_.address.user.empty();
}

bool Connection::start_handshake() {
    const Address& address = settings_.address;
    bool sent = true;
    if (gives_password()) {
        unanswered_++;
        sent = address.user.empty() ? send_words({"AUTH", address.password}, on_auth_reply)
                                    : send_words({"AUTH", address.user, address.password}, on_auth_reply);
    }
    if (unanswered_ == 0) {
        // A server that requires a password answers PING by NOAUTH, but closes the connection at a command as
        // long as a script.
        unanswered_++;
        sent = send_words({"PING"}, on_handshake_reply);
    }
    if (address.database != 0) {
        unanswered_++;
        sent = sent && send_words({"SELECT", std::to_string(address.database)}, on_handshake_reply);
    }
    if (settings_.probe_in_handshake) {
        unanswered_++;
        sent = sent && send(settings_.probe, on_handshake_reply, this);
    }
    if (!settings_.script.empty()) {
        unanswered_++;
        sent = sent && send_words({"SCRIPT", "LOAD", settings_.script}, on_handshake_reply);
    }
    return sent;
}

void Connection::on_connect(redisAsyncContext* context, int status) {
    Connection* self = owner_of(context);
    if (self == nullptr) {
        return;
    }
    if (status != REDIS_OK) {
        // hiredis frees the context when this callback returns.
        self->lose(Error::kRefused, error_text(context));
        return;
    }
    if (self->settings_.address.path.empty()) {
        // Detects a connection that a firewall has dropped before a call needs it.
        redisEnableKeepAliveWithInterval(&context->c, kKeepAlive);
    }
    const char* untrusted = nullptr;
    if (self->settings_.address.tls && !self->start_tls(&untrusted)) {
        self->fail(Error::kTls, untrusted != nullptr ? untrusted : error_text(context));
    } else if (!self->start_handshake()) {
        self->fail(Error::kOther, "out of memory");
    }
}

void Connection::on_handshake_reply(redisAsyncContext* context, void* answer, void* self_pointer) {
    const auto* reply = static_cast<const redisReply*>(answer);
    if (reply != nullptr && owner_of(context) != nullptr) {
        static_cast<Connection*>(self_pointer)->read_handshake_reply(*reply, error_of(*reply));
    }
}

void Connection::on_auth_reply(redisAsyncContext* context, void* answer, void* self_pointer) {
    const auto* reply = static_cast<const redisReply*>(answer);
    if (reply != nullptr && owner_of(context) != nullptr) {
        static_cast<Connection*>(self_pointer)->read_handshake_reply(*reply, redact(error_of(*reply)));
    }
}

// `text` is the text of an error reply that may be logged.
void Connection::read_handshake_reply(const redisReply& reply, std::string_view text) {
    if (reply.type == REDIS_REPLY_ERROR) {
        fail(classify(error_of(reply)), text);
        return;
    }
    if (reply.type != REDIS_REPLY_STATUS && reply.type != REDIS_REPLY_STRING) {
        fail(Error::kShape, "unexpected reply to the handshake");
        return;
    }
    unanswered_--;
    if (unanswered_ == 0) {
        ready_ = true;
        owner_->on_ready();
    }
}

void Connection::on_disconnect(const redisAsyncContext* context, int) {
    Connection* self = owner_of(context);
    if (self == nullptr) {
        return;
    }
    if (self->session_ != nullptr && !self->ready_) {
        self->lose(Error::kTls, self->tls_handshake_error(context));
        return;
    }
    if (self->guard_.refused != nullptr) {
        self->lose(Error::kProtocol, self->guard_.refused);
        return;
    }
    const std::string_view line = self->ready_ ? error_text(context) : self->handshake_error(context);
    switch (context->c.err) {
        case REDIS_ERR_PROTOCOL:
            return self->lose(Error::kProtocol, line);
        case REDIS_ERR_OTHER:
            return self->lose(classify(error_text(context)), line);
        default:
            return self->lose(Error::kClosed, line);
    }
}

// The error of hiredis. During a handshake with AUTH, the error is redacted: it may contain the password.
std::string_view Connection::shown_error(const redisAsyncContext* context) const {
    const bool repeats = !ready_ && context->c.err == REDIS_ERR_OTHER && gives_password();
    return repeats ? redact(error_text(context)) : error_text(context);
}

// Why the handshake without TLS failed.
std::string_view Connection::handshake_error(const redisAsyncContext* context) const {
    if (context->c.err == REDIS_ERR_PROTOCOL &&
        error_text(context).find(kTlsAlert) != std::string_view::npos) {
        return "the server answered with a TLS alert: this port requires rediss://";
    }
    if (was_hung_up(context) && settings_.address.path.empty()) {
        return "the server closed the connection before it answered: does this port require rediss://?";
    }
    return shown_error(context);
}

// Why the handshake with TLS failed: the certificate, TLS, or the error of hiredis.
std::string_view Connection::tls_handshake_error(const redisAsyncContext* context) const {
    if (const char* untrusted = verify_error(session_)) {
        return untrusted;
    }
    if (was_not_tls()) {
        return "the answer is not TLS: this port requires redis://";
    }
    if (const char* line = tls_error()) {
        return line;
    }
    return was_hung_up(context) && !handshake_done(session_)
               ? "the server closed the connection during the TLS handshake: does this port require redis://?"
               : shown_error(context);
}

// Closes the connection, from within one of its callbacks.
void Connection::fail(Error error, std::string_view line) {
    const std::string kept(line);
    close();
    owner_->on_lost(error, kept);
}

// hiredis has closed the connection, and frees the context.
void Connection::lose(Error error, std::string_view line) {
    const std::string kept(line);
    context_ = nullptr;
    ready_ = false;
    forget_tls_errors();
    owner_->on_lost(error, kept);
}

}  // namespace rate_limit::redis
