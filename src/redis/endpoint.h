// Where the server is that a client wants: known once and for all, looked up by name, or told by Sentinels.
#pragma once

#include <cstdint>
#include <string>

#include "redis/error.h"

namespace rate_limit::redis {

// Belongs to one client and its thread.
class Endpoint {
  public:
    struct Target {
        std::string address;  // numeric, or a unix socket's path; empty if it is not known
        std::uint16_t port = 0;
        const char* trouble = nullptr;     // what went wrong with finding out, if anything did
        std::string name = {};             // that a TLS server must prove to be, if the settings name none
        Error error = Error::kUnresolved;  // of what kind the trouble is
    };

    // Who is told.
    class Owner {
      public:
        // The server is somewhere else than it was, or is known at last. Called from the loop.
        virtual void on_moved() = 0;

      protected:
        ~Owner() = default;
    };

    virtual ~Endpoint() = default;

    virtual void set_owner(Owner* owner) = 0;

    // Where to connect to now. May begin to find out.
    virtual Target target() = 0;

    // There was nobody, or somebody else: it is time to ask anew.
    virtual void suspect() = 0;

    // Whether a server that does not accept writes is the wrong one, rather than a failure of the right one.
    virtual bool wants_primary() const = 0;
};

}  // namespace rate_limit::redis
