// Drives a connection of hiredis from its first packet to its last.
#include "redis/connection.h"

#include <hiredis/async.h>
#include <hiredis/hiredis_ssl.h>

#include <cerrno>
#include <initializer_list>

#include "redis/command.h"
#include "redis/tls.h"

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
        // A numeric address is of one family only; asking for both spares hiredis a second try.
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
    greetings_ = 0;
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

bool Connection::load_script() { return say({"SCRIPT", "LOAD", settings_.script}, nullptr); }

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

bool Connection::say(std::initializer_list<std::string_view> words, Reply reply) {
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

// If that fails because the server's certificate is not believed, says why.
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

bool Connection::greet() {
    const Address& address = settings_.address;
    bool said = true;
    if (gives_password()) {
        greetings_++;
        said = address.user.empty() ? say({"AUTH", address.password}, on_auth)
                                    : say({"AUTH", address.user, address.password}, on_auth);
    }
    if (greetings_ == 0) {
        // A server that wants a password says so to a short command, but takes offence at one as long as a
        // script.
        greetings_++;
        said = say({"PING"}, on_greeting);
    }
    if (address.database != 0) {
        greetings_++;
        said = said && say({"SELECT", std::to_string(address.database)}, on_greeting);
    }
    if (settings_.greet_by_probe) {
        greetings_++;
        said = said && send(settings_.probe, on_greeting, this);
    }
    if (!settings_.script.empty()) {
        greetings_++;
        said = said && say({"SCRIPT", "LOAD", settings_.script}, on_greeting);
    }
    return said;
}

void Connection::on_connect(redisAsyncContext* context, int status) {
    Connection* self = owner_of(context);
    if (self == nullptr) {
        return;
    }
    if (status != REDIS_OK) {
        // hiredis frees the context itself when this returns.
        self->lose(Error::kRefused, error_text(context));
        return;
    }
    if (self->settings_.address.path.empty()) {
        // A connection that something on the way has forgotten is noticed before it is needed.
        redisEnableKeepAliveWithInterval(&context->c, kKeepAlive);
    }
    const char* untrusted = nullptr;
    if (self->settings_.address.tls && !self->start_tls(&untrusted)) {
        self->fail(Error::kTls, untrusted != nullptr ? untrusted : error_text(context));
    } else if (!self->greet()) {
        self->fail(Error::kOther, "out of memory");
    }
}

void Connection::on_greeting(redisAsyncContext* context, void* answer, void* self_pointer) {
    const auto* reply = static_cast<const redisReply*>(answer);
    if (reply != nullptr && owner_of(context) != nullptr) {
        static_cast<Connection*>(self_pointer)->take_greeting(*reply, error_of(*reply));
    }
}

void Connection::on_auth(redisAsyncContext* context, void* answer, void* self_pointer) {
    const auto* reply = static_cast<const redisReply*>(answer);
    if (reply != nullptr && owner_of(context) != nullptr) {
        static_cast<Connection*>(self_pointer)->take_greeting(*reply, redact(error_of(*reply)));
    }
}

// `text` is what the log may say of a reply that is an error.
void Connection::take_greeting(const redisReply& reply, std::string_view text) {
    if (reply.type == REDIS_REPLY_ERROR) {
        fail(classify(error_of(reply)), text);
        return;
    }
    if (reply.type != REDIS_REPLY_STATUS && reply.type != REDIS_REPLY_STRING) {
        fail(Error::kShape, "unexpected reply to the handshake");
        return;
    }
    greetings_--;
    if (greetings_ == 0) {
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
        self->lose(Error::kTls, self->handshake_error(context));
        return;
    }
    if (self->guard_.refused != nullptr) {
        self->lose(Error::kProtocol, self->guard_.refused);
        return;
    }
    const std::string_view line = self->ready_ ? error_text(context) : self->greeting_error(context);
    switch (context->c.err) {
        case REDIS_ERR_PROTOCOL:
            return self->lose(Error::kProtocol, line);
        case REDIS_ERR_OTHER:
            return self->lose(classify(error_text(context)), line);
        default:
            return self->lose(Error::kClosed, line);
    }
}

// What hiredis says, without what a server may have repeated of AUTH.
std::string_view Connection::shown_error(const redisAsyncContext* context) const {
    const bool repeats = !ready_ && context->c.err == REDIS_ERR_OTHER && gives_password();
    return repeats ? redact(error_text(context)) : error_text(context);
}

// Why a connection without TLS did not get ready.
std::string_view Connection::greeting_error(const redisAsyncContext* context) const {
    if (context->c.err == REDIS_ERR_PROTOCOL &&
        error_text(context).find(kTlsAlert) != std::string_view::npos) {
        return "the server answered with a TLS alert: this port requires rediss://";
    }
    if (was_hung_up(context) && settings_.address.path.empty()) {
        return "the server closed the connection before it answered: does this port require rediss://?";
    }
    return shown_error(context);
}

// Why a connection with TLS did not get ready: the certificate, TLS itself, or what hiredis says.
std::string_view Connection::handshake_error(const redisAsyncContext* context) const {
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

// Gives a connection up from within one of its callbacks.
void Connection::fail(Error error, std::string_view line) {
    const std::string kept(line);
    close();
    owner_->on_lost(error, kept);
}

void Connection::lose(Error error, std::string_view line) {
    const std::string kept(line);
    context_ = nullptr;
    ready_ = false;
    forget_tls_errors();
    owner_->on_lost(error, kept);
}

}  // namespace rate_limit::redis
