// Whom to ask: one server, or the nodes of a cluster, each of which has some of the keys.
#pragma once

#include <cstdint>
#include <string_view>

namespace rate_limit::redis {

class Client;

// A cluster's nodes share out its keys by slots.
using Slot = std::uint16_t;
constexpr unsigned kSlots = 16384;

// The slot of a key: of what stands in its first braces, if that is anything, else of the whole.
Slot slot_of(std::string_view key);

class Router {
  public:
    virtual ~Router() = default;

    // Whether keys of different slots may be at different servers, and no call may have both.
    virtual bool sharded() const = 0;

    // Who answers for a slot at present; null if that is nobody, or not known. Good until the loop's next
    // turn.
    virtual Client* client_of(Slot slot) = 0;

    // Makes connections before the first call needs them.
    virtual void open() {}

    // Whether connections that open() began to make may still be ready soon.
    virtual bool opening() const { return false; }
};

}  // namespace rate_limit::redis
