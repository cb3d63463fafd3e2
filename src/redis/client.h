// A worker's client of one Redis server: sends calls, answers each by its deadline, and fails fast during an
// outage.
//
// Belongs to one thread. Nothing here blocks: replies come later, from the event loop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "connection/buffer.h"
#include "connection/connection.h"
#include "connection/endpoint.h"
#include "connection/error.h"
#include "connection/loop.h"
#include "redis/connector.h"
#include "redis/router.h"
#include "redis/tracked_connection.h"

namespace rate_limit::redis {

class Client;

// A command and its callback. Created by Client::make_call, filled in, sent, and owned by the client from
// then on.
class Call {
  public:
    // `reply` is the bulk string of the script if `error` is kNone. Neither `reply` nor the call may be used
    // after the callback has returned.
    using Answer = void (*)(void* self, Error error, std::string_view reply);

    Buffer command;     // complete, in RESP
    HashSlot slot = 0;  // of its keys
    // The native command that takes the same arguments as EVALSHA after the digest; empty if there is none.
    // The text is static.
    std::string_view native;

  private:
    friend class Client;

    Client* client = nullptr;
    TrackedConnection* connection = nullptr;  // by which it was issued
    Answer answer = nullptr;                  // null once it was called
    void* self = nullptr;
    Milliseconds sent_at = 0;
    std::int64_t issued_at = 0;  // by the clock of the observer, if there is one
    Milliseconds deadline = 0;
    bool issued = false;     // hiredis has it, and will call back
    bool retried = false;    // after NOSCRIPT
    bool by_native = false;  // it was issued as the native command
    bool by_script = false;  // the native command has refused it
    bool asking = false;     // sent after ASKING
    unsigned moves = 0;      // how often it was redirected
    Call* next = nullptr;    // of the unanswered calls, by deadline; or of the free ones
    Call* previous = nullptr;
};

// Decides what to do with redirections. Implemented by the cluster.
class Redirector {
  public:
    // The client for a call that `from` answered by `error`, MOVED or ASK, with the reply `text`. Null if the
    // redirection is not followed.
    virtual Client* redirect(const Client& from, Error error, std::string_view text) = 0;

    // A server does not answer, or does not serve a slot: the map of slots may have changed.
    virtual void on_trouble() = 0;

  protected:
    ~Redirector() = default;
};

// Counters since the client was created.
struct Counts {
    std::uint64_t calls = 0;
    std::uint64_t errors[kErrors] = {};
    std::uint64_t opened = 0;  // how often the breaker opened
};

class Client final : public Router, private Connector::Owner {
  public:
    static constexpr unsigned kMostMoves = 5;  // of a call

    // Takes ownership of `endpoint`, which knows the address of the server. `settings` and `loop` must
    // outlive the client.
    static Client* make_with(const Settings& settings, std::unique_ptr<Endpoint> endpoint, Loop* loop);

    // The same for the host of the settings. `addresses` are its numeric addresses as known so far.
    static Client* make(const Settings& settings, const std::vector<std::string>& addresses, Loop* loop);

    // Answers all unanswered calls by kClosed.
    ~Client() override;
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    bool sharded() const override { return false; }
    Client* client_of(HashSlot) override { return this; }
    void open() override { connector_.open(); }
    bool opening() const override { return connector_.opening(); }

    // The redirector must outlive the client. Without one, redirections are errors.
    void set_redirector(Redirector* redirector) { redirector_ = redirector; }

    // Whether the breaker is closed. Otherwise a call should not be sent.
    bool available() const { return connector_.available(); }

    // Whether a connection exists and its handshake is complete. An idle connection may be closed at any
    // time; the next call connects again.
    bool connected() const { return connector_.ready(); }

    // Whether the server has native commands, as far as known.
    bool native() const { return native_; }

    // Whether the last call that Redis denied (kDenied) failed because the user may not run the command. If
    // not, the password was missing or wrong.
    bool lacks_rights() const { return lacks_rights_; }

    // An empty call; null if memory is exhausted.
    Call* make_call();

    // Sends a call. Calls `answer` once, at the latest at the deadline, never before send() returns. `self`
    // must live until then. The deadline is settings().timeout after `since`, by default after now.
    void send(Call* call, Call::Answer answer, void* self);
    void send(Call* call, Call::Answer answer, void* self, Milliseconds since);

    // The first of the calls that wait for a connection; null if there is none.
    Call* first_unsent() const;

    // Passes a call that waits here to another client, with the same deadline. If `to` is null, the call is
    // answered by kUnavailable now. `asking`: the call is to be sent after ASKING.
    void pass_on(Call* call, Client* to, bool asking);

    // Whether any call is unanswered.
    bool busy() const { return first_ != nullptr; }

    // To be called from within Call::Answer: the reply could not be read. Counts as a failed call.
    void distrust(Error error, std::string_view line);

    // The address of the last attempt to connect, for the log.
    const std::string& where() const { return connector_.where(); }

    // See Connector::patience().
    Milliseconds patience() const { return connector_.patience(); }

    const Counts& counts() const { return counts_; }
    const Settings& settings() const { return settings_; }

  private:
    Client(const Settings& settings, std::unique_ptr<Endpoint> endpoint, Loop* loop);

    void on_answering() override;
    void fail_calls(Error error) override;
    void on_unreachable(Error error) override;
    bool has_calls() const override { return busy(); }
    void on_breaker(bool open) override;
    bool is_slot_error(Error error, std::string_view text) override;

    static void on_reply(redisAsyncContext* context, void* reply, void* self);
    void on_deadline();
    void accept(Call* call);
    void issue(Call* call, TrackedConnection* connection);
    void look_for_native(TrackedConnection* connection);
    static void on_native_reply(redisAsyncContext* context, void* reply, void* self);
    void read_native_reply(const redisReply& reply);
    bool retried_by_script(Call* call, std::string_view text);
    void read_reply(Call* call, const redisReply& reply);
    void read_error(Call* call, std::string_view text);
    bool redirected(Call* call, Error error, std::string_view text);
    void finish(Call* call, Error error, std::string_view reply, bool of_server = true);
    void recycle(Call* call);
    void count(Error error);
    void watch(Milliseconds time);
    void enlist(Call* call);
    void unlist(Call* call);

    const Settings& settings_;
    Loop* loop_;
    Connector connector_;
    Counts counts_;
    Alarm* deadline_;
    Milliseconds watched_ = 0;  // the time of deadline_, if it is armed
    Redirector* redirector_ = nullptr;
    bool lacks_rights_ = false;                     // see lacks_rights()
    bool native_ = false;                           // see native()
    bool native_missed_ = false;                    // the server has answered that it has no native commands
    Milliseconds native_asked_at_ = 0;              // 0 for never
    TrackedConnection* native_asked_by_ = nullptr;  // while its probe for native commands is in flight
    bool calls_wait_ = false;  // some calls were not issued, because no connection was ready
    Call* first_ = nullptr;    // of the unanswered calls, by deadline
    Call* last_ = nullptr;
    Call* free_ = nullptr;
    std::uint64_t distrusted_ = 0;  // replies that could not be read
};

}  // namespace rate_limit::redis
