// A worker's client of one Redis: one connection that all calls share, a deadline for each, and a breaker.
//
// Belongs to one thread. Nothing here waits: answers come later, from the loop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "redis/breaker.h"
#include "redis/buffer.h"
#include "redis/connection.h"
#include "redis/error.h"
#include "redis/locator.h"
#include "redis/loop.h"
#include "redis/service.h"

namespace rate_limit::redis {

class Client;

// A command on its way. Made by Client::make_call, filled in, sent, and given back by the answer.
class Call {
  public:
    // `reply` is the script's bulk string if `error` is kNone. Neither it nor the call lives on afterwards.
    using Answer = void (*)(void* self, Error error, std::string_view reply);

    Buffer command;  // whole, in RESP
    Slot slot = 0;   // of its keys

  private:
    friend class Client;

    Client* client = nullptr;
    Answer answer = nullptr;  // null once it was given, or given up
    void* self = nullptr;
    Milliseconds sent_at = 0;
    std::int64_t issued_at = 0;  // by the watcher's clock, if there is one
    Milliseconds deadline = 0;
    bool issued = false;    // hiredis has it, and will call back
    bool repeated = false;  // after NOSCRIPT
    bool asking = false;    // it follows an ASK
    unsigned moves = 0;     // how often it was sent elsewhere
    Call* next = nullptr;   // among those that wait, by deadline
    Call* previous = nullptr;
};

// Who knows better than a server that has answered a call with MOVED or ASK.
class Redirector {
  public:
    // The client that `text` points to; null if it is not to be followed.
    virtual Client* redirect(const Client& from, Error error, std::string_view text) = 0;

    // A server is not worth asking at present.
    virtual void on_trouble() = 0;

  protected:
    ~Redirector() = default;
};

// What a client has seen since it was made.
struct Counts {
    std::uint64_t calls = 0;
    std::uint64_t errors[kErrors] = {};
    std::uint64_t opened = 0;  // the breaker
};

class Client final : public Service, private Connection::Owner, private Locator::Owner {
  public:
    static constexpr unsigned kMostMoves = 5;  // of a call

    // Takes over `locator`, which says where the server is. Null if there is no memory.
    static Client* make_with(const Settings& settings, std::unique_ptr<Locator> locator, Loop* loop);

    // The same for the settings' own host, whose numeric addresses as known so far are given.
    static Client* make(const Settings& settings, const std::vector<std::string>& addresses, Loop* loop);
    ~Client() override;
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    bool split() const override { return false; }
    Client* client_of(Slot) override { return this; }

    // Whoever it is must outlive the client.
    void set_redirector(Redirector* redirector) { redirector_ = redirector; }

    // Whether a call would be sent, rather than fail at once.
    bool available() const { return !breaker_.open(); }

    // Whether there is a connection that has been greeted. One that is idle may end without being missed.
    bool connected() const { return connection_.ready(); }

    // An empty call; null if there is no memory.
    Call* make_call();

    // Sends a call and answers it by its deadline, never before this returns. Whoever asks must outlive the
    // answer. The deadline counts from `since`, when the first of those asked who wait for it, if that is
    // given.
    void send(Call* call, Call::Answer answer, void* self);
    void send(Call* call, Call::Answer answer, void* self, Milliseconds since);

    // The first of the calls that wait for this client to be connected; null if there is none.
    Call* first_unsent() const;

    // Lets another client answer a call that waits here, by the same deadline. If that is nobody, the call is
    // answered now.
    void pass_on(Call* call, Client* to, bool asking);

    // Whether any call is unanswered.
    bool busy() const { return first_ != nullptr; }

    // Whoever asked found that a reply makes no sense.
    void distrust(Error error, std::string_view line);

    const Counts& counts() const { return counts_; }
    const Settings& settings() const { return settings_; }

  private:
    Client(const Settings& settings, std::unique_ptr<Locator> locator, Loop* loop);

    static void on_reply(redisAsyncContext* context, void* reply, void* self);
    void on_ready() override;
    void on_lost(Error error, std::string_view line) override;
    void on_moved() override;
    void on_deadline();
    void on_retry();
    void on_probe(const void* answer);
    void answered(Call* call, const void* answer);
    bool redirected(Call* call, Error error, std::string_view text);
    void accept(Call* call);

    void connect();
    void fail_connection(Error error, std::string_view line);
    void issue(Call* call);
    void finish(Call* call, Error error, std::string_view reply);
    void give_up(Call* call, Error error);
    void recycle(Call* call);
    void fail_waiting(Error error);
    void on_open(Error error, std::string_view line);
    void count(Error error);
    void count_opened();
    void succeed(bool closed);
    void probe();
    void watch(Milliseconds deadline);
    void enlist(Call* call);
    void unlist(Call* call);
    void complain(Error error, std::string_view line);

    const Settings& settings_;
    Loop* loop_;
    Connection connection_;
    Breaker breaker_;
    Counts counts_;
    Alarm* deadline_ = nullptr;
    Milliseconds watched_ = 0;  // when that rings, if it is armed
    Alarm* retry_ = nullptr;
    std::unique_ptr<Locator> locator_;
    Redirector* redirector_ = nullptr;
    bool greeted_ = false;       // the connection was ready
    bool probing_ = false;       // a probe is unanswered
    Milliseconds heard_at_ = 0;  // when Redis last said anything
    Call* first_ = nullptr;      // of those that wait
    Call* last_ = nullptr;
    Call* free_ = nullptr;
    Milliseconds complained_at_[kErrors] = {};
    std::uint64_t unsaid_[kErrors] = {};
    Milliseconds recovered_at_ = 0;  // when that was last said
    std::uint64_t distrusted_ = 0;   // replies that made no sense
};

}  // namespace rate_limit::redis
