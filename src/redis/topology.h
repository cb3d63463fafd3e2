// Who has which slots of a cluster, as one of its nodes tells it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "redis/connection.h"
#include "redis/endpoint.h"
#include "redis/loop.h"
#include "redis/slots.h"

namespace rate_limit::redis {

// Slots that follow one another and have one master.
struct SlotRange {
    Slot first;
    Slot last;
    std::string host;  // a numeric address or a name
    std::uint16_t port;
    std::string name;  // that a TLS server must prove to be
};

// Asks one node after the other until one answers. It has a connection only while it asks.
class Topology final : private Connection::Owner {
  public:
    class Owner {
      public:
        // Called from the loop.
        virtual void on_ranges(const std::vector<SlotRange>& ranges) = 0;
        // None of the nodes has answered; what the last one, at `where`, did instead.
        virtual void on_no_ranges(const std::string& where, Error error, std::string_view line) = 0;

      protected:
        ~Owner() = default;
    };

    // `settings` are without a script, and live as long as this. Null if there is no memory.
    static Topology* make(const Settings& settings, Loop* loop, Owner* owner);
    ~Topology();
    Topology(const Topology&) = delete;
    Topology& operator=(const Topology&) = delete;

    // Asks these, in this order, and tells the owner. Not while it is asking.
    void ask(std::vector<Endpoint::Target> nodes);

    bool asking() const { return !nodes_.empty(); }

  private:
    Topology(const Settings& settings, Loop* loop, Owner* owner)
        : settings_(settings), connection_(settings, loop, this), owner_(owner) {}

    static void on_slots(redisAsyncContext* context, void* answer, void* self_pointer);
    void on_ready() override;
    void on_lost(Error error, std::string_view line) override;
    void on_timer();
    void ask_next();
    void fail(Error error, std::string_view line);

    const Settings& settings_;
    Connection connection_;
    Owner* owner_;
    Alarm* timer_ = nullptr;  // until the node must have answered, or until the next is asked
    std::vector<Endpoint::Target> nodes_;
    std::size_t next_ = 0;
};

}  // namespace rate_limit::redis
