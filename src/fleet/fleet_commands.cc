// Writes the commands of the fleet.
#include "fleet/fleet_commands.h"

#include "connection/command.h"
#include "core/client_name.h"
#include "protocol/key_writer.h"
#include "protocol/script_text.h"

namespace rate_limit {
namespace {

std::string rates_key(std::string_view prefix) { return std::string(prefix) + "rates"; }

// In Cluster, the tag puts the resets into the slot of the rates, so that one call can read both.
std::string resets_key(std::string_view prefix, bool sharded) {
    return std::string(prefix) + "resets" + (sharded ? ":{" + rates_key(prefix) + "}" : "");
}

// A script call whose only key is that of a client.
FleetCommand client_command(std::string_view script, std::string_view prefix, std::string_view zone,
                            Algorithm algorithm, std::string_view client) {
    redis::Buffer key;
    append_key_text(prefix, zone, algorithm, client, &key);
    return {redis::format_eval(script, {key.view()}, {}), redis::hash_slot_of(key.view())};
}

}  // namespace

FleetCommand read_changes(std::string_view prefix, bool sharded, std::uint64_t since,
                          const std::vector<FleetZone>& zones) {
    const std::string moment = std::to_string(since);
    std::vector<std::string_view> arguments = {moment};
    for (const FleetZone& zone : zones) {
        arguments.push_back(zone.name);
    }
    return {
        redis::format_eval(kFleetChangesScript, {rates_key(prefix), resets_key(prefix, sharded)}, arguments),
        changes_slot(prefix)};
}

FleetCommand change_rate(std::string_view prefix, std::string_view zone, std::string_view rate) {
    return {redis::format_eval(kChangeRateScript, {rates_key(prefix)}, {zone, rate}), changes_slot(prefix)};
}

FleetCommand delete_client(std::string_view prefix, std::string_view zone, Algorithm algorithm,
                           std::string_view client) {
    return client_command(kDeleteClientScript, prefix, zone, algorithm, client);
}

FleetCommand find_client(std::string_view prefix, std::string_view zone, Algorithm algorithm,
                         std::string_view client) {
    return client_command(kFindClientScript, prefix, zone, algorithm, client);
}

FleetCommand correct_client(std::string_view prefix, std::string_view zone, const Policy& policy,
                            const StateLayout& layout, std::string_view client, GroupKind kind,
                            std::uint64_t amount) {
    constexpr std::size_t kGroups = 2;     // the correction, and a request of cost 0
    constexpr std::size_t kArguments = 2;  // policies and groups
    char policies[kLongestPolicy];
    char groups[kGroups * (kGroupSize + kLargeLimitSize) + kChargeSize];
    char* at = put_limit(put_group(groups, 1, kind, true), 0, amount, true);
    at = kind >= kUndo ? put_charge(at, {amount, kForever}) : at;
    at = put_limit(put_group(at, 1, kDecide, false), 0, 0, false);
    redis::Buffer key;
    append_key_text(prefix, zone, policy.algorithm, client, &key);
    redis::Buffer command;
    redis::append_evalsha(kScriptSha1, kGroups, kArguments, &command);
    for (std::size_t i = 0; i < kGroups; i++) {
        redis::append_bulk(key.view(), &command);
    }
    redis::append_bulk({policies, encode_policy(policy, layout, policies)}, &command);
    redis::append_bulk({groups, static_cast<std::size_t>(at - groups)}, &command);
    return {std::string(command.view()), redis::hash_slot_of(key.view())};
}

FleetCommand announce_reset(std::string_view prefix, bool sharded, std::uint64_t instance,
                            std::string_view zone, std::string_view client) {
    const std::string key = resets_key(prefix, sharded);
    const std::string member = print_id(instance) + " " + std::string(zone) + " " + std::string(client);
    return {redis::format_eval(kAnnounceResetScript, {key}, {member}), redis::hash_slot_of(key)};
}

redis::HashSlot changes_slot(std::string_view prefix) { return redis::hash_slot_of(rates_key(prefix)); }

bool send_command(const FleetCommand& command, redis::Router* router, redis::Call::Answer answer,
                  void* self) {
    redis::Client* client = router->client_of(command.slot);
    redis::Call* call = client != nullptr && client->available() ? client->make_call() : nullptr;
    if (call == nullptr) {
        return false;
    }
    call->command.append(command.command);
    call->slot = command.slot;
    client->send(call, answer, self);
    return true;
}

}  // namespace rate_limit
