// One of a client's connections, what is in flight on it, and since when nothing was heard from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "redis/connection.h"
#include "redis/loop.h"

namespace rate_limit::redis {

// Belongs to one client and its thread.
class Lane final : private Connection::Owner {
  public:
    class Owner {
      public:
        virtual void on_ready(Lane* lane) = 0;
        // `greeted` if it was ready before. Neither call may open this lane again before it returns.
        virtual void on_lost(Lane* lane, bool greeted, Error error, std::string_view line) = 0;

      protected:
        ~Owner() = default;
    };

    Lane(const Settings& settings, Loop* loop, Owner* owner)
        : loop_(loop), owner_(owner), connection_(settings, loop, this) {}
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    Owner* owner() const { return owner_; }

    // As those of Connection.
    bool open(const Endpoint::Target& target, std::string* line);
    void close();
    bool connected() const { return phase_ != Phase::kClosed; }
    bool ready() const { return phase_ == Phase::kReady || phase_ == Phase::kProbing; }
    std::string_view awaited() const { return connection_.awaited(); }
    bool load_script() { return connection_.load_script(); }

    // Sends a whole command in RESP; only when ready. Its reply must call replied(). False if there is no
    // memory.
    bool send(std::string_view command, Connection::Reply reply, void* self) {
        if (!connection_.send(command, reply, self)) {
            return false;
        }
        if (in_flight_++ == 0) {
            quiet_since_ = loop_->now();
        }
        return true;
    }

    // Sends a command whose reply nobody waits for.
    bool send(std::string_view command) { return connection_.send(command, nullptr, nullptr); }

    // A reply has come, or, if it is null, will not come.
    void replied(const void* reply) {
        in_flight_ -= in_flight_ != 0 ? 1 : 0;
        if (reply != nullptr) {
            heard_at_ = quiet_since_ = loop_->now();
        }
    }

    // A command is sent that shows whether Redis can write.
    void probe(std::string_view command, Connection::Reply reply);
    void end_probe() { phase_ = phase_ == Phase::kProbing ? Phase::kReady : phase_; }
    bool probing() const { return phase_ == Phase::kProbing; }

    // Whether a connection is being made or probed, and since when.
    bool connecting() const { return phase_ == Phase::kConnecting; }
    bool trying() const { return connecting() || probing(); }
    Milliseconds tried_at() const { return tried_at_; }

    // Sends a command that changes nothing. If a packet was lost, one that arrives behind it lets the kernel
    // send it again after a round trip, instead of the 200 ms that it waits otherwise.
    void nudge(Connection::Reply reply);

    // Whether something is in flight and nothing was heard for so long.
    bool silent_for(Milliseconds time) const {
        return in_flight_ != 0 && loop_->now() >= quiet_since_ + time;
    }

    // When something was last heard, or the first of what is in flight was sent after that.
    Milliseconds quiet_since() const { return quiet_since_; }
    bool in_flight() const { return in_flight_ != 0; }
    Milliseconds heard_at() const { return heard_at_; }

  private:
    enum class Phase : std::uint8_t {
        kClosed,      // There is no connection, and nothing may be sent. open() ends it.
        kConnecting,  // The handshake is unfinished; no call may be sent. on_ready(), on_lost() or close()
                      // ends it.
        kReady,       // Calls may be sent. probe(), on_lost() or close() ends it.
        kProbing,     // As kReady, and a probe is in flight. end_probe(), on_lost() or close() ends it.
    };

    void on_ready() override;
    void on_lost(Error error, std::string_view line) override;

    Loop* loop_;
    Owner* owner_;
    Connection connection_;
    Phase phase_ = Phase::kClosed;
    unsigned in_flight_ = 0;
    Milliseconds tried_at_ = 0;
    Milliseconds quiet_since_ = 0;
    Milliseconds heard_at_ = 0;
};

}  // namespace rate_limit::redis
