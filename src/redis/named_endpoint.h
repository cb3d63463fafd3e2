// A server that is where its name says.
#pragma once

#include <string>
#include <vector>

#include "redis/address.h"
#include "redis/endpoint.h"
#include "redis/resolver.h"

namespace rate_limit::redis {

// Its addresses are tried in turn. After a failure the name is looked up again, in a thread of its own;
// meanwhile what was known of it before is better than nothing.
class NamedEndpoint final : public Endpoint {
  public:
    // `addresses` are the numeric ones of the host, as known so far.
    NamedEndpoint(const Address& address, const std::vector<std::string>& addresses)
        : address_(address), addresses_(addresses) {}
    ~NamedEndpoint() override;
    NamedEndpoint(const NamedEndpoint&) = delete;
    NamedEndpoint& operator=(const NamedEndpoint&) = delete;

    void set_owner(Owner*) override {}
    Target target() override;
    void suspect() override;
    bool wants_primary() const override { return false; }

    // Begins to look the name up, if it is one.
    void look_up();

    // Whether a look-up has begun that target() has not seen the end of.
    bool looking() const { return lookup_ != nullptr; }

  private:
    const Address& address_;
    std::vector<std::string> addresses_;
    std::size_t next_ = 0;
    Lookup* lookup_ = nullptr;
};

}  // namespace rate_limit::redis
