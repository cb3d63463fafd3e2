// Commands by which the instances that share a Redis tell each other about changed rates and reset clients.
//
// The hash PREFIX rates has the rate of each zone whose rate was changed. The sorted set PREFIX resets has
// the clients that were reset within the last minute. In Cluster, both are in one slot.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/policy.h"
#include "fleet/fleet_zone.h"
#include "protocol/wire.h"
#include "redis/client.h"
#include "redis/router.h"

namespace rate_limit {

// A whole command in RESP, and the slot of its keys. Its reply is a string.
struct FleetCommand {
    std::string command;
    redis::HashSlot slot;
};

// Reads the rates of zones, and the resets after the moment `since`, in microseconds of Redis's clock; 0
// reads no resets. The reply is a list of strings, each after its length in 4 little-endian bytes: the moment
// of the last reset, then the rate of each zone (empty if it was not changed), then the resets.
FleetCommand read_changes(std::string_view prefix, bool sharded, std::uint64_t since,
                          const std::vector<FleetZone>& zones);

// Changes the rate of a zone; with an empty `rate`, sets it back to the configuration.
FleetCommand change_rate(std::string_view prefix, std::string_view zone, std::string_view rate);

// Deletes a client's key, or looks for it. The reply is "1", or "0" if there is no key. Here and below,
// `client` is a name as short_name returns it.
FleetCommand delete_client(std::string_view prefix, std::string_view zone, Algorithm algorithm,
                           std::string_view client);
FleetCommand find_client(std::string_view prefix, std::string_view zone, Algorithm algorithm,
                         std::string_view client);

// Corrects what a client has used by `amount`, and decides a request of cost 0, in one step. With kOverdraw
// the amount is charged, with kUndoRequest it is given back. The call is of kScript: protocol/wire.h
// describes the reply.
FleetCommand correct_client(std::string_view prefix, std::string_view zone, const Policy& policy,
                            const StateLayout& layout, std::string_view client, GroupKind kind,
                            std::uint64_t amount);

// Tells the other instances to forget a client. `instance` is the id of this instance.
FleetCommand announce_reset(std::string_view prefix, bool sharded, std::uint64_t instance,
                            std::string_view zone, std::string_view client);

// The slot of the rates and, in Cluster, of the resets.
redis::HashSlot changes_slot(std::string_view prefix);

// Sends a command to the server that has its slot. False if no server is available for it; then `answer` is
// never called. Otherwise `self` must live until `answer` is called.
bool send_command(const FleetCommand& command, redis::Router* router, redis::Call::Answer answer, void* self);

}  // namespace rate_limit
