// The connections of a client to one server: when to connect, to probe, to change to the second one, and to
// stop calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "connection/endpoint.h"
#include "connection/error.h"
#include "connection/journal.h"
#include "connection/loop.h"
#include "redis/breaker.h"
#include "redis/tracked_connection.h"

namespace rate_limit::redis {

// Belongs to one client and its thread. Has one connection and, if settings.spare, a second one while the
// first is silent: a lost packet delays all commands behind it until the kernel retransmits it. Each call
// leaves by the active connection.
class Connector final : private TrackedConnection::Owner, private Endpoint::Owner {
  public:
    class Owner {
      public:
        // A connection has become ready or has answered: calls that wait may be sent.
        virtual void on_answering() = 0;
        // The server has moved: unanswered calls fail with `error`.
        virtual void fail_calls(Error error) = 0;
        // No connection could be made: unanswered calls fail with `error`.
        virtual void on_unreachable(Error error) = 0;
        // Whether any call is unanswered.
        virtual bool has_calls() const = 0;
        // The breaker has opened (`open`) or closed.
        virtual void on_breaker(bool open) = 0;
        // Whether an error that answers a probe is about its slot only, so that the server does answer.
        virtual bool is_slot_error(Error error, std::string_view text) = 0;

      protected:
        ~Owner() = default;
    };

    // The effect of an error on requests, for the log.
    enum class Effect : std::uint8_t { kFailed, kUnreachable, kNone };

    Connector(const Settings& settings, std::unique_ptr<Endpoint> endpoint, Loop* loop, Owner* owner);
    ~Connector();
    Connector(const Connector&) = delete;
    Connector& operator=(const Connector&) = delete;

    // Connects before the first call, unless there is a connection or an attempt. A failure is neither logged
    // nor counted: the first call connects again.
    void open();
    bool opening() const { return phase_ == Phase::kOpening; }

    // Closes all connections. Calls in flight get null replies.
    void close();

    // Whether calls may be sent: the breaker is closed.
    bool available() const { return phase_ == Phase::kServing || phase_ == Phase::kOpening; }

    // Whether a handshake has completed and the connection still exists.
    bool ready() const { return connections_[0].ready() || connections_[1].ready(); }

    // The connection for a new call. Null if the call must wait for on_answering(); then an attempt to
    // connect is in progress or begins.
    TrackedConnection* connection_for_call();

    // The connection for a call that has waited; null if it must wait longer.
    TrackedConnection* choose();

    // Redis has answered by this connection.
    void hear(const TrackedConnection* connection);
    Milliseconds heard_at() const { return heard_at_; }

    // A call was answered by its deadline, `took` after it was sent.
    void note_round_trip(Milliseconds took);

    // Whether Redis has answered since `sent_at`, but not by this connection: the timeout of a call that was
    // sent then by this connection is not a failure of Redis.
    bool is_held_up(const TrackedConnection& connection, Milliseconds sent_at) const;

    // Redis has answered a call without a failure. Closes the breaker.
    void note_success();

    // A call has failed. Opens the breaker, with this log line, after Breaker::kFailures failures in a row.
    void note_failure(Error error, std::string_view line);

    // Opens the breaker at once, unless it is open.
    void trip(Error error, std::string_view line);

    // A call was answered by READONLY. If the endpoint wants a primary, this server is no longer the primary:
    // searches for the new one and opens the breaker.
    void note_read_only(std::string_view line);

    // How long the active connection may be silent with calls in flight, before new calls leave by the second
    // one: a quarter of the timeout, or twice the mean round trip if that is more, up to half of the timeout.
    Milliseconds patience() const { return patience_; }

    // When to call check_silence(); at the latest `deadline`.
    Milliseconds next_check(Milliseconds deadline) const;

    // If the active connection is silent, opens the second one or changes to it.
    void check_silence();

    // What the active connection waits for, for the log.
    std::string_view awaited() const { return active_->ready() ? "no answer" : active_->awaited(); }

    // The address of the last attempt, for the log; before the first attempt, the configured one.
    const std::string& where() const { return where_; }

    // Logs an error, unless the same one was logged recently.
    void complain(Error error, std::string_view line, Effect effect = Effect::kFailed);

  private:
    // What is known about the server. enter() changes it.
    enum class Phase : std::uint8_t {
        kServing,      // The breaker is closed. Calls are sent; the first one connects. Ended by failures.
        kOpening,      // open() connects, and no call has come. Ended by a call, a handshake or a failure.
        kFailing,      // The breaker is open, as calls fail. Only probes are sent. Ended by an answer.
        kUnreachable,  // The breaker is open, as a connection has failed. As kFailing.
    };

    void on_ready(TrackedConnection* connection) override;
    void on_lost(TrackedConnection* connection, bool was_ready, Error error, std::string_view line) override;
    void on_nudged(TrackedConnection* connection) override { hear(connection); }
    void on_probed(TrackedConnection* connection, const redisReply& reply) override;
    void on_moved() override;
    void on_retry();

    TrackedConnection* other_than(const TrackedConnection* connection) {
        return connection == connections_ ? connections_ + 1 : connections_;
    }
    const TrackedConnection* other_than(const TrackedConnection* connection) const {
        return connection == connections_ ? connections_ + 1 : connections_;
    }
    bool has_connection() const { return connections_[0].connected() || connections_[1].connected(); }
    TrackedConnection* choose_of_two();
    Milliseconds mean_patience() const;
    void open_spare(TrackedConnection* connection);
    void close_idle_spare();
    void connect(TrackedConnection* connection);
    void fail_connection(TrackedConnection* connection, Error error, std::string_view line);
    void end_attempt(TrackedConnection* connection);
    void attempt_again();
    Milliseconds next_attempt_after();
    void watch_attempt(const TrackedConnection& connection);
    void rearm();
    void enter(Phase next);
    void close_breaker(TrackedConnection* connection);
    void report_recovery(Phase before);
    Journal& journal() { return settings_.journal != nullptr ? *settings_.journal : own_journal_; }

    static constexpr Milliseconds kMeanWeight = 8;

    const Settings& settings_;
    Loop* loop_;
    Owner* owner_;
    std::unique_ptr<Endpoint> endpoint_;
    TrackedConnection connections_[2];          // the second only with settings_.spare
    TrackedConnection* active_ = connections_;  // by which calls leave
    Breaker breaker_;                           // open in kFailing and kUnreachable
    Alarm* retry_;                              // until the next attempt, or until one must have succeeded
    Phase phase_ = Phase::kServing;
    bool spare_helped_ = false;         // Redis has answered by one connection while the other was silent
    Milliseconds heard_at_ = 0;         // when Redis last answered by any connection
    Milliseconds checked_at_ = 0;       // when the active connection was last found silent
    Milliseconds mean_round_trip_ = 0;  // times kMeanWeight
    Milliseconds patience_;             // see patience()
    std::string where_;                 // see where()
    Journal own_journal_;               // unless the settings have one
};

}  // namespace rate_limit::redis
