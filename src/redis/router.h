// Whom to ask: one server, or the nodes of a cluster, each of which has some of the keys.
#pragma once

#include "redis/slots.h"

namespace rate_limit::redis {

class Client;

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
