// The interface that finds the client for a key: one server, or the nodes of a cluster.
#pragma once

#include "redis/hash_slot.h"

namespace rate_limit::redis {

class Client;

class Router {
  public:
    virtual ~Router() = default;

    // Whether keys of different slots may be on different servers, so that a call may have keys of one slot
    // only.
    virtual bool sharded() const = 0;

    // The client for a slot; null if no node has the slot. Valid until the next turn of the loop.
    virtual Client* client_of(HashSlot slot) = 0;

    // Starts to connect before the first call.
    virtual void open() {}

    // Whether connections that open() has started are neither ready nor failed.
    virtual bool opening() const { return false; }
};

}  // namespace rate_limit::redis
