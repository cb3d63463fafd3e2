// A connection of a client, with its phase, its number of commands in flight, and the time since which it is
// silent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "connection/connection.h"
#include "connection/loop.h"

namespace rate_limit::redis {

// Belongs to one client and its thread.
class TrackedConnection final : private Connection::Owner {
  public:
    // None of these calls may open this connection again before it returns.
    class Owner {
      public:
        // The handshake is complete.
        virtual void on_ready(TrackedConnection* connection) = 0;
        // `was_ready`: the handshake had completed. `line` says what happened, for the log.
        virtual void on_lost(TrackedConnection* connection, bool was_ready, Error error,
                             std::string_view line) = 0;
        // Redis has answered nudge().
        virtual void on_nudged(TrackedConnection* connection) = 0;
        // Redis has answered probe(). Not called if the connection is lost before.
        virtual void on_probed(TrackedConnection* connection, const redisReply& reply) = 0;

      protected:
        ~Owner() = default;
    };

    TrackedConnection(const Settings& settings, Loop* loop, Owner* owner)
        : loop_(loop), owner_(owner), connection_(settings, loop, this) {}
    TrackedConnection(const TrackedConnection&) = delete;
    TrackedConnection& operator=(const TrackedConnection&) = delete;

    // Starts to connect; only when there is no connection. False, with the reason in `*line`, if that failed
    // at once.
    bool open(const Endpoint::Target& target, std::string* line);

    // As Connection::close().
    void close();

    // Whether there is a connection, complete or not; whether its handshake is complete.
    bool connected() const { return phase_ != Phase::kClosed; }
    bool ready() const { return phase_ == Phase::kReady || phase_ == Phase::kProbing; }

    // As those of Connection.
    std::string_view awaited() const { return connection_.awaited(); }
    bool load_script() { return connection_.load_script(); }

    // Sends a complete command in RESP; only when ready. The callback must call count_reply(). False if
    // memory is exhausted.
    bool send(std::string_view command, Connection::Reply reply, void* self) {
        if (!connection_.send(command, reply, self)) {
            return false;
        }
        if (in_flight_++ == 0) {
            silent_since_ = loop_->now();
        }
        return true;
    }

    // Sends a command whose reply is ignored; only when ready.
    bool send(std::string_view command) { return connection_.send(command, nullptr, nullptr); }

    // A reply has come or, if `reply` is null, will not come.
    void count_reply(const void* reply) {
        in_flight_ -= in_flight_ != 0 ? 1 : 0;
        if (reply != nullptr) {
            heard_at_ = silent_since_ = loop_->now();
        }
    }

    // Sends a command that shows whether Redis can write; only when ready.
    void probe(std::string_view command);
    bool probing() const { return phase_ == Phase::kProbing; }

    // Whether an attempt is in progress, that is, a handshake or a probe; and when the last one began (0 for
    // never).
    bool connecting() const { return phase_ == Phase::kConnecting; }
    bool attempting() const { return connecting() || probing(); }
    Milliseconds attempted_at() const { return attempted_at_; }

    // Sends a command that changes nothing; only when ready. If a packet was lost, the packet that arrives
    // after it makes the kernel retransmit within a round trip, instead of after 200 ms.
    void nudge();

    // Whether commands are in flight and nothing was received for this time.
    bool silent_for(Milliseconds time) const {
        return in_flight_ != 0 && loop_->now() >= silent_since_ + time;
    }

    // When something was last received, or, if later, when the first of the commands in flight was sent.
    Milliseconds silent_since() const { return silent_since_; }
    bool in_flight() const { return in_flight_ != 0; }

    // When something was last received.
    Milliseconds heard_at() const { return heard_at_; }

  private:
    enum class Phase : std::uint8_t {
        kClosed,      // No connection. Nothing may be sent. Ended by open().
        kConnecting,  // TCP, TLS or handshake commands are unanswered. No call may be sent. Ended by
                      // on_ready().
        kReady,       // Calls may be sent. Ended by probe().
        kProbing,     // A probe is in flight. Calls may be sent. Ended by the reply.
    };                // A connection that is lost or closed is in kClosed again.

    static void on_nudge_reply(redisAsyncContext* context, void* reply, void* self_pointer);
    static void on_probe_reply(redisAsyncContext* context, void* reply, void* self_pointer);
    void on_ready() override;
    void on_lost(Error error, std::string_view line) override;

    Loop* loop_;
    Owner* owner_;
    Connection connection_;
    Phase phase_ = Phase::kClosed;
    unsigned in_flight_ = 0;
    Milliseconds attempted_at_ = 0;
    Milliseconds silent_since_ = 0;
    Milliseconds heard_at_ = 0;
};

}  // namespace rate_limit::redis
