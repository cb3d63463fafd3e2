// The configured Sentinels or nodes of a cluster, with their addresses.
#pragma once

#include <cstddef>
#include <vector>

#include "connection/address.h"
#include "connection/resolver.h"

namespace rate_limit::redis {

// Belongs to one thread.
class Seeds {
  public:
    explicit Seeds(const std::vector<Seed>& seeds) : seeds_(seeds) {}
    ~Seeds();
    Seeds(const Seeds&) = delete;
    Seeds& operator=(const Seeds&) = delete;

    // All seeds, with their addresses as known so far.
    const std::vector<Seed>& all();

    // Starts to look up the next host name, in a thread, unless a lookup is in progress. To be called when no
    // seed answers. A name that is not found keeps its addresses.
    void look_up();

  private:
    std::vector<Seed> seeds_;
    std::size_t next_ = 0;
    std::size_t looked_ = 0;  // the seed of lookup_
    NameLookup* lookup_ = nullptr;
};

}  // namespace rate_limit::redis
