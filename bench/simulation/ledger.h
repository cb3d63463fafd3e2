// Redis' part of sync=: what lua/sync.lua does, with the arithmetic of src/core.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "algorithms/check.h"
#include "fleet/sync_ledger.h"

namespace rate_limit::simulation {

// Clients are numbers from 0. Their names are these numbers in decimal.
std::string name_of(std::uint32_t client);
std::uint32_t client_of(std::string_view name);

struct Answer {
    Micros time = 0;
    std::vector<std::uint32_t> overshoots;  // one for each entry of the batch
    std::vector<std::uint64_t> states;      // words_of(layout) for each entry
};

class Ledger {
  public:
    // The policy must outlive this object.
    Ledger(const Policy& policy, std::uint32_t clients);

    // Charges a batch, unless its number is not above that of the sender's last batch. Returns the new
    // states.
    void apply(const SyncBatch& batch, Micros now, Answer* answer);

  private:
    Micros time_of_charge(const SyncBatch& batch, const std::uint64_t* state, Micros now) const;
    std::uint32_t overshoot(const std::uint64_t* state, Micros time, Micros now, std::uint64_t cost) const;

    const Policy* policy_;
    StateLayout layout_;
    std::size_t words_;                             // words of a state
    std::vector<std::uint64_t> states_;             // states of all clients
    std::map<std::uint64_t, std::uint64_t> guard_;  // number of the last applied batch, by sender
};

}  // namespace rate_limit::simulation
