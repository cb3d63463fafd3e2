// Loads the slot map of a cluster from one of its nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "connection/connection.h"
#include "connection/endpoint.h"
#include "connection/loop.h"
#include "redis/hash_slot.h"

namespace rate_limit::redis {

// Consecutive slots of one master.
struct SlotRange {
    HashSlot first;
    HashSlot last;     // inclusive
    std::string host;  // a numeric address or a name
    std::uint16_t port;
    std::string name;  // in the certificate of a TLS server
};

// Asks one node after the other until one answers. Keeps no connection between queries. Belongs to one
// thread.
class Topology final : private Connection::Owner {
  public:
    class Owner {
      public:
        // A node has answered. Called from the loop.
        virtual void on_ranges(const std::vector<SlotRange>& ranges) = 0;
        // No node has answered. `where`, `error` and `line` describe the failure of the last one. Called from
        // the loop.
        virtual void on_no_ranges(const std::string& where, Error error, std::string_view line) = 0;

      protected:
        ~Owner() = default;
    };

    // `settings` have no script, and must outlive this object.
    Topology(const Settings& settings, Loop* loop, Owner* owner);
    ~Topology();
    Topology(const Topology&) = delete;
    Topology& operator=(const Topology&) = delete;

    // Asks these nodes, in this order, and calls the owner; only while not asking().
    void ask(std::vector<Endpoint::Target> nodes);

    bool asking() const { return !nodes_.empty(); }

  private:
    static void on_slots(redisAsyncContext* context, void* answer, void* self_pointer);
    void on_ready() override;
    void on_lost(Error error, std::string_view line) override;
    void on_timer();
    void ask_next();
    void fail(Error error, std::string_view line);

    const Settings& settings_;
    Connection connection_;
    Owner* owner_;
    Alarm* timer_;  // timeout of a node while connected, else the start of the next attempt
    std::vector<Endpoint::Target> nodes_;  // empty while not asking
    std::size_t next_ = 0;                 // in nodes_
};

}  // namespace rate_limit::redis
