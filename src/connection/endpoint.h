// The interface to the address of a server: fixed, resolved from a name, or given by Sentinels or a cluster.
#pragma once

#include <cstdint>
#include <string>

#include "connection/error.h"

namespace rate_limit::redis {

// Belongs to one client and its thread.
class Endpoint {
  public:
    struct Target {
        std::string address;  // numeric, or the path of a unix socket; empty if unknown
        std::uint16_t port = 0;
        const char* trouble = nullptr;     // why the address is unknown or may be outdated; null if neither
        std::string name = {};             // in the certificate of a TLS server, unless the settings have one
        Error error = Error::kUnresolved;  // the kind of the trouble
    };

    class Owner {
      public:
        // The address has changed, or is known now. Called from the loop.
        virtual void on_moved() = 0;

      protected:
        ~Owner() = default;
    };

    virtual ~Endpoint() = default;

    // Must be called before target(). The owner must outlive the endpoint.
    virtual void set_owner(Owner* owner) = 0;

    // Where to connect now. If both `address` and `trouble` are unset, the search is in progress, and
    // on_moved() will be called. May start a search.
    virtual Target target() = 0;

    // The server did not answer, or is not the right one: searches again.
    virtual void suspect() = 0;

    // Whether a read-only server is the wrong one, rather than a failure of the right one.
    virtual bool wants_primary() const = 0;
};

}  // namespace rate_limit::redis
