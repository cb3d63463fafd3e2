// A zone in the memory of this instance, as changes of rates and resets of clients need it.
#pragma once

#include <string>
#include <string_view>

#include "algorithms/state_layout.h"
#include "core/policy.h"
#include "lease/leases.h"
#include "memory/denials.h"
#include "memory/live_rate.h"
#include "memory/process.h"
#include "memory/table.h"

namespace rate_limit {

// All pointers must outlive the FleetZone.
struct FleetZone {
    std::string name;
    std::string configured;  // its rate, as the configuration has it
    const Policy* policy = nullptr;
    StateLayout layout = {};
    LiveRate* live = nullptr;
    Table* table = nullptr;      // null if the zone has none
    Denials* denials = nullptr;  // null if the zone has none
    Leases* leases = nullptr;    // null if the zone has none
};

// The rate of a zone before and after a change, as text.
struct RateTexts {
    std::string before;
    std::string now;
};

// Sets the live rate of a zone in this instance; with null, sets it back to the configured rate.
RateTexts change_live_rate(const FleetZone& zone, const RateList* rates);

// Forgets a client in this instance. True if the table had a state of the client. Here and below, `client` is
// a name as short_name returns it.
bool forget_client(const FleetZone& zone, std::string_view client, const Process& process);

// Whether the table has a state of a client.
bool knows_client(const FleetZone& zone, std::string_view client, const Process& process);

}  // namespace rate_limit
