// The interface to where leased portions come from.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/policy.h"

namespace rate_limit {

// A client of a zone. `name` is its short_name.
struct LeaseClient {
    std::string_view name;
    std::uint64_t hash;  // Leases::hash of the name
    const Policy* policy;
};

// A portion to ask for. The amount is 0 if there is nothing to ask for.
struct LeaseAsk {
    std::uint64_t amount = 0;
    std::uint32_t id = 0;  // for Leases::grant and the like
};

// Units of a window to give back. The amount is 0 if there is nothing to give back.
struct LeaseRest {
    std::uint64_t amount = 0;
    Micros charged_at = 0;  // by Redis's clock
};

class Lender {
  public:
    virtual ~Lender() = default;

    // Asks for a portion. No call waits for the answer.
    virtual void ask(const LeaseClient& client, const LeaseAsk& ask) = 0;

    // Gives units back to their window. False if Redis is not connected.
    virtual bool give_back(const LeaseClient& client, const LeaseRest& rest) = 0;

    // The process is about to exit: it asks for nothing more, and gives back what it gets.
    virtual void end() = 0;
};

}  // namespace rate_limit
