// One connection to a Redis: made, greeted with password, database and script, and lost.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "redis/address.h"
#include "redis/call_observer.h"
#include "redis/endpoint.h"
#include "redis/error.h"
#include "redis/journal.h"
#include "redis/loop.h"
#include "redis/reply_guard.h"

struct redisAsyncContext;
struct redisReply;
struct ssl_ctx_st;
struct ssl_st;

namespace rate_limit::redis {

// Everything that a client is told once. Lives as long as the clients.
struct Settings {
    std::string name;  // in log lines
    std::string node;  // of a cluster, HOST:PORT; empty for a single server
    Address address;
    std::string server_name;      // that a TLS server must prove to be; empty: what its target says
    ssl_ctx_st* tls = nullptr;    // if address.tls
    std::string_view script;      // loaded into Redis with each connection; empty for none
    std::string probe_key;        // may be written to see whether Redis can
    std::string probe;            // a whole command in RESP that does so
    bool greet_by_probe = false;  // a server that cannot write is not greeted as if it could
    std::uint32_t most_elements =
        1024;  // of an array in a reply: memory for one is taken as soon as its size is told
    std::size_t most_reply = 16U << 20;        // bytes of memory that a reply may take
    Milliseconds timeout = 20;                 // of a call
    Milliseconds connect_timeout = 1000;       // until the greeting is answered
    bool background = false;                   // no request waits for its calls
    bool quiet = false;                        // logs only that there is no connection
    bool spare = false;                        // connects a second time while a connection is silent
    CallObserver* observer = nullptr;          // may be null
    const Consequence* consequence = nullptr;  // may be null
    Journal* journal = nullptr;                // that clients of the same Redis share; may be null
};

class Connection {
  public:
    // Who is told. Neither call may open the connection again before it returns.
    class Owner {
      public:
        virtual void on_ready() = 0;
        // `line` says what happened, for the log. Every command still unanswered has had its null reply.
        virtual void on_lost(Error error, std::string_view line) = 0;

      protected:
        ~Owner() = default;
    };

    using Reply = void (*)(redisAsyncContext* context, void* reply, void* self);

    Connection(const Settings& settings, Loop* loop, Owner* owner)
        : settings_(settings), loop_(loop), owner_(owner) {}
    ~Connection() { close(); }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    // Starts to connect. False, with the reason in `*line`, if that failed at once; the owner is told of
    // later failures.
    bool open(const Endpoint::Target& target, std::string* line);

    // Ends it, and tells nobody but the commands that wait: they get a null reply.
    void close();

    bool connected() const { return context_ != nullptr; }
    bool ready() const { return ready_; }

    // Sends a whole command in RESP; only when ready. False if there is no memory.
    bool send(std::string_view command, Reply reply, void* self);

    // Subscribes to a channel, whose name must live as long as the connection; only when ready, and only
    // once. False if there is no memory.
    bool subscribe(std::string_view channel, Reply reply, void* self);

    // What a connection that is not ready waits for, for the log.
    std::string_view awaited() const;

    // Loads the script once more. The commands that follow find it.
    bool load_script();

    // Why a command got a null reply, in its callback.
    static Error loss(const redisAsyncContext* context);
    static std::string_view loss_line(const redisAsyncContext* context);

  private:
    static void on_connect(redisAsyncContext* context, int status);
    static void on_disconnect(const redisAsyncContext* context, int status);
    static void on_greeting(redisAsyncContext* context, void* answer, void* self_pointer);
    static void on_auth(redisAsyncContext* context, void* answer, void* self_pointer);

    static const char* refusal(const redisAsyncContext* context);
    bool start_tls(const char** untrusted);
    bool gives_password() const;
    std::string_view shown_error(const redisAsyncContext* context) const;
    std::string_view handshake_error(const redisAsyncContext* context) const;
    std::string_view greeting_error(const redisAsyncContext* context) const;
    void take_greeting(const redisReply& reply, std::string_view text);
    bool greet();
    bool say(std::initializer_list<std::string_view> words, Reply reply);
    void fail(Error error, std::string_view line);
    void lose(Error error, std::string_view line);

    const Settings& settings_;
    Loop* loop_;
    Owner* owner_;
    redisAsyncContext* context_ = nullptr;
    ReplyGuard guard_;
    ssl_st* session_ = nullptr;  // hiredis frees it
    std::string server_name_;    // of this server
    unsigned greetings_ = 0;     // unanswered
    bool ready_ = false;
};

}  // namespace rate_limit::redis
