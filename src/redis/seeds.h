// Servers that know the way to others, by name: Sentinels, or nodes of a cluster.
#pragma once

#include <cstddef>
#include <vector>

#include "redis/address.h"
#include "redis/resolver.h"

namespace rate_limit::redis {

// Belongs to one thread.
class Seeds {
  public:
    explicit Seeds(const std::vector<Seed>& seeds) : seeds_(seeds) {}
    ~Seeds();
    Seeds(const Seeds&) = delete;
    Seeds& operator=(const Seeds&) = delete;

    // With their addresses as known so far.
    const std::vector<Seed>& all();

    // None of them was of use: looks up the next of the names, in a thread of its own. A name that is not
    // found keeps its addresses.
    void look_up();

  private:
    std::vector<Seed> seeds_;
    std::size_t next_ = 0;
    std::size_t looked_ = 0;  // whose name is being looked up
    Lookup* lookup_ = nullptr;
};

}  // namespace rate_limit::redis
