// One connection to a Redis: TCP or unix socket, TLS, and the handshake with password, database and script.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "connection/address.h"
#include "connection/call_observer.h"
#include "connection/endpoint.h"
#include "connection/error.h"
#include "connection/journal.h"
#include "connection/loop.h"
#include "connection/reply_guard.h"

struct redisAsyncContext;
struct redisReply;
struct ssl_ctx_st;
struct ssl_st;

namespace rate_limit::redis {

// The configuration of a client. Must outlive the client.
struct Settings {
    std::string name;  // in log lines
    std::string node;  // of a cluster, HOST:PORT; empty for a single server
    Address address;
    std::string server_name;        // in the certificate of a TLS server; empty: Endpoint::Target::name
    ssl_ctx_st* tls = nullptr;      // if address.tls
    std::string_view script;        // loaded by each handshake; empty for none
    std::string probe_key;          // a key that probes may write
    std::string probe;              // a complete command in RESP that shows whether Redis can write
    std::string_view native_probe;  // a complete command in RESP that the server answers by a bulk string if
                                    // it has native commands; empty if they are not used
    bool native_expected = false;   // a server without native commands is reported
    bool probe_in_handshake = false;  // the handshake includes the probe, so it fails if Redis cannot write
    std::uint32_t most_elements = 1024;        // of an array in a reply; hiredis allocates them all at once
    std::size_t most_reply = 16U << 20;        // bytes of memory that a reply may take
    Milliseconds timeout = 20;                 // of a call
    Milliseconds connect_timeout = 1000;       // of a connection with its handshake
    bool background = false;                   // no request waits for the calls
    bool quiet = false;                        // logs only failures to connect
    bool spare = false;                        // opens a second connection while the first is silent
    CallObserver* observer = nullptr;          // may be null
    const Consequence* consequence = nullptr;  // may be null
    Journal* journal = nullptr;                // shared by the clients of a Redis; may be null
};

// Belongs to one thread.
class Connection {
  public:
    // Neither call may open the connection again before it returns.
    class Owner {
      public:
        // The handshake is complete.
        virtual void on_ready() = 0;
        // The connection has failed or was closed by the server. `line` says what happened, for the log. The
        // callbacks of all commands in flight have had a null reply.
        virtual void on_lost(Error error, std::string_view line) = 0;

      protected:
        ~Owner() = default;
    };

    // The callback of a command. `reply` is a redisReply, or null if the connection was lost.
    using Reply = void (*)(redisAsyncContext* context, void* reply, void* self);

    Connection(const Settings& settings, Loop* loop, Owner* owner)
        : settings_(settings), loop_(loop), owner_(owner) {}
    ~Connection() { close(); }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    // Starts to connect; only when not connected. False, with the reason in `*line`, if that failed at once.
    // Later failures call on_lost().
    bool open(const Endpoint::Target& target, std::string* line);

    // Closes the connection, if there is one. Commands in flight get a null reply; on_lost() is not called.
    void close();

    // Whether there is a connection, with its handshake complete or not.
    bool connected() const { return context_ != nullptr; }

    // Whether the handshake is complete.
    bool ready() const { return ready_; }

    // Sends a complete command in RESP; only when ready. False if memory is exhausted.
    bool send(std::string_view command, Reply reply, void* self);

    // Subscribes to a channel; only when ready, and only once. The text of `channel` must outlive the
    // connection. False if memory is exhausted.
    bool subscribe(std::string_view channel, Reply reply, void* self);

    // What a connection that is not ready waits for, as a log message.
    std::string_view awaited() const;

    // Loads the script again, before the commands that are sent next; only when ready. False if there is no
    // memory.
    bool load_script();

    // Why a command got a null reply; to be called from its callback.
    static Error loss(const redisAsyncContext* context);
    static std::string_view loss_line(const redisAsyncContext* context);

  private:
    static void on_connect(redisAsyncContext* context, int status);
    static void on_disconnect(const redisAsyncContext* context, int status);
    static void on_handshake_reply(redisAsyncContext* context, void* answer, void* self_pointer);
    static void on_auth_reply(redisAsyncContext* context, void* answer, void* self_pointer);

    static const char* refusal(const redisAsyncContext* context);
    bool start_tls(const char** untrusted);
    bool gives_password() const;
    std::string_view shown_error(const redisAsyncContext* context) const;
    std::string_view tls_handshake_error(const redisAsyncContext* context) const;
    std::string_view handshake_error(const redisAsyncContext* context) const;
    void read_handshake_reply(const redisReply& reply, std::string_view text);
    bool start_handshake();
    bool send_words(std::initializer_list<std::string_view> words, Reply reply);
    void fail(Error error, std::string_view line);
    void lose(Error error, std::string_view line);

    const Settings& settings_;
    Loop* loop_;
    Owner* owner_;
    redisAsyncContext* context_ = nullptr;
    ReplyGuard guard_;
    ssl_st* session_ = nullptr;  // hiredis frees it
    std::string server_name_;    // in the certificate of this server
    unsigned unanswered_ = 0;    // commands of the handshake that are unanswered
    bool ready_ = false;
};

}  // namespace rate_limit::redis
