// A worker's client of one Redis: a connection that all calls share, a deadline for each, and a breaker.
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
#include "redis/endpoint.h"
#include "redis/error.h"
#include "redis/lane.h"
#include "redis/loop.h"
#include "redis/router.h"

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
    Lane* lane = nullptr;     // by which it was issued
    Answer answer = nullptr;  // null once it was given, or given up
    void* self = nullptr;
    Milliseconds sent_at = 0;
    std::int64_t issued_at = 0;  // by the observer's clock, if there is one
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

class Client final : public Router, private Lane::Owner, private Endpoint::Owner {
  public:
    static constexpr unsigned kMostMoves = 5;  // of a call

    // Takes over `endpoint`, which says where the server is. Null if there is no memory.
    static Client* make_with(const Settings& settings, std::unique_ptr<Endpoint> endpoint, Loop* loop);

    // The same for the settings' own host, whose numeric addresses as known so far are given.
    static Client* make(const Settings& settings, const std::vector<std::string>& addresses, Loop* loop);
    ~Client() override;
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    bool sharded() const override { return false; }
    Client* client_of(Slot) override { return this; }
    void open() override;
    bool opening() const override { return phase_ == Phase::kOpening; }

    // Whoever it is must outlive the client.
    void set_redirector(Redirector* redirector) { redirector_ = redirector; }

    // Whether a call would be sent, rather than fail at once.
    bool available() const { return phase_ == Phase::kServing || phase_ == Phase::kOpening; }

    // Whether there is a connection that has been greeted. One that is idle may end without being missed.
    bool connected() const { return lanes_[0].ready() || lanes_[1].ready(); }

    // Whether the last call that Redis denied (kDenied) failed because the user has no right to it. If not,
    // the password was missing or wrong.
    bool lacks_rights() const { return lacks_rights_; }

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

    // The address that was last tried, for the log.
    const std::string& where() const { return where_; }

    // How long a connection may be silent while a call is in flight on it, before others leave by a second
    // one, if the settings allow that: a quarter of the timeout, or longer if Redis usually takes longer.
    Milliseconds patience() const { return patience_; }

    const Counts& counts() const { return counts_; }
    const Settings& settings() const { return settings_; }

  private:
    enum class Phase : std::uint8_t {
        kServing,  // The breaker is closed. Calls are sent, and the first of them connects. Failures end it.
        kOpening,  // open() connects and no call has come. A call, a handshake or a failure ends it.
        kFailing,  // The breaker is open: calls have failed. Only probes are sent. Any answer ends it.
        kUnreachable,  // As kFailing, and a connection has failed since. An answer ends it.
    };

    Client(const Settings& settings, std::unique_ptr<Endpoint> endpoint, Loop* loop);

    static void on_reply(redisAsyncContext* context, void* reply, void* self);
    void on_ready(Lane* lane) override;
    void on_lost(Lane* lane, bool was_ready, Error error, std::string_view line) override;
    void on_moved() override;
    void on_deadline();
    void on_retry();
    void on_probe(Lane* lane, const void* answer);
    void answered(Call* call, const void* answer);
    bool redirected(Call* call, Error error, std::string_view text);
    void accept(Call* call);

    Lane* other_than(const Lane* lane) { return lane == lanes_ ? lanes_ + 1 : lanes_; }
    const Lane* other_than(const Lane* lane) const { return lane == lanes_ ? lanes_ + 1 : lanes_; }
    bool has_connection() const { return lanes_[0].connected() || lanes_[1].connected(); }
    Lane* way();
    Lane* choose_way();
    void issue_waiting();
    void note_round_trip(Milliseconds took);
    Milliseconds usual_patience() const;
    void heard(const Lane* lane);
    bool is_held_up(const Call& call) const;
    Milliseconds next_look() const;
    void look_at_way();
    void open_spare(Lane* lane);
    static void on_nudge(redisAsyncContext* context, void* reply, void* self);
    void connect(Lane* lane);
    void fail_connection(Lane* lane, Error error, std::string_view line);
    void end_attempt(Lane* lane);
    void try_again();
    Milliseconds next_attempt_after();
    void watch_attempt(const Lane& lane);
    void rest();
    void end_idle_spare();
    void close_breaker(Lane* lane);
    void issue(Call* call, Lane* lane) const;
    void finish(Call* call, Error error, std::string_view reply, bool of_server = true);
    void give_up(Call* call, Error error);
    void recycle(Call* call);
    void fail_waiting(Error error);
    void enter(Phase next);
    void open_breaker(Error error, std::string_view line);
    void count(Error error);
    void succeed();
    void report_recovery(bool was_reachable);
    void probe(Lane* lane);
    void watch(Milliseconds deadline);
    void enlist(Call* call);
    void unlist(Call* call);
    enum class Effect : std::uint8_t { kFailed, kUnreachable, kNone };  // on requests
    void complain(Error error, std::string_view line, Effect effect = Effect::kFailed);
    Journal& journal() { return settings_.journal != nullptr ? *settings_.journal : own_journal_; }

    static constexpr Milliseconds kUsualParts = 8;

    const Settings& settings_;
    Loop* loop_;
    Lane lanes_[2];       // the second only with settings_.spare
    Lane* way_ = lanes_;  // by which calls leave
    Breaker breaker_;
    Counts counts_;
    Alarm* deadline_ = nullptr;
    Milliseconds watched_ = 0;  // when that rings, if it is armed
    Alarm* retry_ = nullptr;
    std::unique_ptr<Endpoint> endpoint_;
    Redirector* redirector_ = nullptr;
    Phase phase_ = Phase::kServing;
    bool lacks_rights_ = false;   // see lacks_rights()
    Milliseconds heard_at_ = 0;   // when Redis last said anything
    Milliseconds looked_at_ = 0;  // when the way was last found silent
    Milliseconds usual_ = 0;      // how long an answer takes, in parts of a millisecond
    Milliseconds patience_;       // see patience()
    bool calls_wait_ = false;     // for a connection: issue_waiting() sends them
    bool spare_helped_ = false;   // Redis has answered by one connection while the other was silent
    Call* first_ = nullptr;       // of those that wait
    Call* last_ = nullptr;
    Call* free_ = nullptr;
    std::string where_;             // the address that was last tried, for the log
    Journal own_journal_;           // unless the settings have one
    std::uint64_t distrusted_ = 0;  // replies that made no sense
};

}  // namespace rate_limit::redis
