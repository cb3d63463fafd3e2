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

namespace rate_limit::redis {

class Client;

// A command on its way. Made by Client::make_call, filled in, sent, and given back by the answer.
class Call {
  public:
    // `reply` is the script's bulk string if `error` is kNone. Neither it nor the call lives on afterwards.
    using Answer = void (*)(void* self, Error error, std::string_view reply);

    Buffer command;  // whole, in RESP

  private:
    friend class Client;

    Client* client = nullptr;
    Answer answer = nullptr;  // null once it was given, or given up
    void* self = nullptr;
    Milliseconds sent_at = 0;
    Milliseconds deadline = 0;
    bool issued = false;    // hiredis has it, and will call back
    bool repeated = false;  // after NOSCRIPT
    Call* next = nullptr;   // among those that wait, by deadline
    Call* previous = nullptr;
};

// What a client has seen since it was made.
struct Counts {
    std::uint64_t calls = 0;
    std::uint64_t errors[kErrors] = {};
    std::uint64_t opened = 0;  // the breaker
};

class Client final : private Connection::Owner, private Locator::Owner {
  public:
    // Takes over `locator`, which says where the server is. Null if there is no memory.
    static Client* make_with(const Settings& settings, std::unique_ptr<Locator> locator, Loop* loop);

    // The same for the settings' own host, whose numeric addresses as known so far are given.
    static Client* make(const Settings& settings, const std::vector<std::string>& addresses, Loop* loop);
    ~Client();
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    // Whether a call would be sent, rather than fail at once.
    bool available() const { return !breaker_.open(); }

    // An empty call; null if there is no memory.
    Call* make_call();

    // Sends a call and answers it by its deadline, never before this returns. Whoever asks must outlive the
    // answer.
    void send(Call* call, Call::Answer answer, void* self);

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

    void connect();
    void fail_connection(Error error, std::string_view line);
    void issue(Call* call);
    void finish(Call* call, Error error, std::string_view reply);
    void recycle(Call* call);
    void fail_waiting(Error error);
    void on_open(Error error, std::string_view line);
    void succeed(bool closed);
    void probe();
    void enlist(Call* call);
    void unlist(Call* call);
    void complain(Error error, std::string_view line);

    const Settings& settings_;
    Loop* loop_;
    Connection connection_;
    Breaker breaker_;
    Counts counts_;
    Alarm* deadline_ = nullptr;
    Alarm* retry_ = nullptr;
    std::unique_ptr<Locator> locator_;
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
