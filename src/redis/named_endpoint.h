// The endpoint of a server with a configured host name, numeric address or unix socket.
#pragma once

#include <string>
#include <vector>

#include "connection/address.h"
#include "connection/endpoint.h"
#include "connection/resolver.h"

namespace rate_limit::redis {

// Tries the addresses of the host in turn. After a failure, looks up the name again in a thread; until that
// ends, and if it fails, the known addresses stay.
class NamedEndpoint final : public Endpoint {
  public:
    // `addresses` are the numeric addresses of the host as known so far. `address` must outlive this object.
    NamedEndpoint(const Address& address, const std::vector<std::string>& addresses)
        : address_(address), addresses_(addresses) {}
    ~NamedEndpoint() override;
    NamedEndpoint(const NamedEndpoint&) = delete;
    NamedEndpoint& operator=(const NamedEndpoint&) = delete;

    void set_owner(Owner*) override {}
    Target target() override;
    void suspect() override;
    bool wants_primary() const override { return false; }

    // Starts to look up the name, unless the host is numeric or a lookup is in progress.
    void look_up();

    // Whether a lookup was started and target() has not taken its result.
    bool looking() const { return lookup_ != nullptr; }

  private:
    const Address& address_;
    std::vector<std::string> addresses_;
    std::size_t next_ = 0;
    NameLookup* lookup_ = nullptr;
};

}  // namespace rate_limit::redis
