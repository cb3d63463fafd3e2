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

constexpr std::string_view kUnexpected = "the server sent a reply that no command waits for";

std::string_view error_text(const redisAsyncContext* context) {
    return context->errstr != nullptr && context->errstr[0] != '\0' ? context->errstr : context->c.errstr;
}

}  // namespace

bool Connection::open(const Locator::Place& place, std::string* line) {
    redisOptions options = {};
    if (settings_.address.path.empty()) {
        REDIS_OPTIONS_SET_TCP(&options, place.address.c_str(), place.port);
        // A numeric address is of one family only; asking for both spares hiredis a second try.
        options.options |= REDIS_OPT_PREFER_IP_UNSPEC;
    } else {
        REDIS_OPTIONS_SET_UNIX(&options, place.address.c_str());
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
    guard_.watch(context);
    server_name_ = settings_.server_name.empty() ? place.name : settings_.server_name;
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

Error Connection::loss(const redisAsyncContext* context) {
    return context->c.err == REDIS_ERR_PROTOCOL || was_refused(context) ? Error::kProtocol : Error::kClosed;
}

std::string_view Connection::loss_line(const redisAsyncContext* context) {
    if (was_refused(context)) {
        return kUnexpected;
    }
    return context->c.err != 0 ? error_text(context) : "the connection was lost before the answer";
}

bool Connection::was_refused(const redisAsyncContext* context) {
    const Connection* self = owner_of(context);
    return self != nullptr && self->guard_.refused;
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
    forget_tls_errors();
    return session_ != nullptr;
}

bool Connection::greet() {
    const Address& address = settings_.address;
    bool said = true;
    if (!address.password.empty() || !address.user.empty()) {
        greetings_++;
        said = address.user.empty() ? say({"AUTH", address.password}, on_greeting)
                                    : say({"AUTH", address.user, address.password}, on_greeting);
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
    auto* self = static_cast<Connection*>(self_pointer);
    const auto* reply = static_cast<const redisReply*>(answer);
    if (reply == nullptr || owner_of(context) == nullptr) {
        return;
    }
    if (reply->type == REDIS_REPLY_ERROR) {
        const std::string_view text(reply->str, reply->len);
        self->fail(classify(text), text);
        return;
    }
    if (reply->type != REDIS_REPLY_STATUS && reply->type != REDIS_REPLY_STRING) {
        self->fail(Error::kShape, "the greeting was not answered as Redis answers it");
        return;
    }
    self->greetings_--;
    if (self->greetings_ == 0) {
        self->ready_ = true;
        self->owner_->on_ready();
    }
}

void Connection::on_disconnect(const redisAsyncContext* context, int) {
    Connection* self = owner_of(context);
    if (self == nullptr) {
        return;
    }
    if (self->session_ != nullptr && !self->ready_) {
        self->lose(Error::kTls, self->handshake_error(error_text(context)));
        return;
    }
    if (self->guard_.refused) {
        self->lose(Error::kProtocol, kUnexpected);
        return;
    }
    switch (context->c.err) {
        case REDIS_ERR_PROTOCOL:
            return self->lose(Error::kProtocol, error_text(context));
        case REDIS_ERR_OTHER:
            return self->lose(classify(error_text(context)), error_text(context));
        default:
            return self->lose(Error::kClosed, error_text(context));
    }
}

// Why a connection with TLS did not get ready: the certificate, TLS itself, or what hiredis says.
std::string_view Connection::handshake_error(std::string_view otherwise) const {
    const char* line = verify_error(session_);
    line = line != nullptr ? line : tls_error();
    return line != nullptr ? line : otherwise;
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
