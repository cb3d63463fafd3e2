// Reads from Redis what was changed, and writes it there.
#include "store/fleet_changes.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

#include "core/client_name.h"
#include "protocol/key_writer.h"
#include "protocol/script_text.h"
#include "redis/command.h"

namespace rate_limit {
namespace {

constexpr redis::Milliseconds kEveryAway = 100;  // while Redis cannot be asked, whether it can again

// Who has no rights may get them; until then its failures should not keep others who share the connection.
constexpr redis::Milliseconds kEveryDenied = 30'000;

std::string rates_key(std::string_view prefix) { return std::string(prefix) + "rates"; }

// In a cluster it is where the rates are, so that one call may have both.
std::string resets_key(std::string_view prefix, bool sharded) {
    return std::string(prefix) + "resets" + (sharded ? ":{" + rates_key(prefix) + "}" : "");
}

// Takes the next part of a reply; false if there is none.
bool take_part(std::string_view* rest, std::string_view* part) {
    constexpr std::size_t kSize = 4;
    if (rest->size() < kSize) {
        return false;
    }
    std::size_t size = 0;
    for (std::size_t i = kSize; i-- > 0;) {
        size = size << 8 | static_cast<unsigned char>((*rest)[i]);
    }
    if (rest->size() - kSize < size) {
        return false;
    }
    *part = rest->substr(kSize, size);
    rest->remove_prefix(kSize + size);
    return true;
}

std::string printable(std::string_view text) {
    constexpr std::size_t kMost = 200;
    std::string shown(text.substr(0, kMost));
    std::replace_if(
        shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~' || c == '"'; }, '?');
    return shown;
}

std::string text_of(const RateList& rates) {
    char text[kLongestRates];
    return {text, print_rates(rates, text)};
}

void ignore(void*, redis::Error, std::string_view) {}

// Runs a script on a client's key.
FleetCommand client_command(std::string_view script, std::string_view prefix, std::string_view zone,
                            Algorithm algorithm, std::string_view client) {
    redis::Buffer key;
    append_key_text(prefix, zone, algorithm, client, &key);
    return {redis::format_command({"EVAL", script, "1", key.view()}), redis::slot_of(key.view())};
}

}  // namespace

FleetChanges::FleetChanges(FleetChangesState* state, std::vector<FleetZone> zones, const Options& options,
                           redis::Router* router, redis::Loop* loop, const Process& process)
    : PeriodicTask(&state->leader(), kEvery, router, loop, process),
      state_(state),
      zones_(std::move(zones)),
      options_(options) {}

FleetChanges* FleetChanges::make(FleetChangesState* state, std::vector<FleetZone> zones,
                                 const Options& options, redis::Router* router, redis::Loop* loop,
                                 const Process& process) {
    std::unique_ptr<FleetChanges> fleet_changes(
        new FleetChanges(state, std::move(zones), options, router, loop, process));
    if (!fleet_changes->start(options.after)) {
        return nullptr;
    }
    if (state->heard() == 0) {
        state->set_heard(process.clock());
    }
    return fleet_changes.release();
}

redis::Slot FleetChanges::slot() const { return redis::slot_of(rates_key(options_.prefix)); }

std::string FleetChanges::question() const {
    redis::Buffer command;
    command.append("*");
    redis::append_decimal(zones_.size() + 6, &command);
    command.append("\r\n");
    for (const std::string_view word :
         {std::string_view("EVAL"), std::string_view(kFleetChangesScript), std::string_view("2")}) {
        redis::append_bulk(word, &command);
    }
    redis::append_bulk(rates_key(options_.prefix), &command);
    redis::append_bulk(resets_key(options_.prefix, router()->sharded()), &command);
    redis::append_bulk_number(state_->resets_until(), &command);
    for (const FleetZone& zone : zones_) {
        redis::append_bulk(zone.name, &command);
    }
    return std::string(command.view());
}

// The client of the server that has the key of the rates; null if there is none at present.
redis::Client* FleetChanges::client() const {
    return router() != nullptr ? router()->client_of(slot()) : nullptr;
}

void FleetChanges::on_timer() {
    if (options_.each_time != nullptr) {
        options_.each_time(options_.self);
    }
}

void FleetChanges::run() {
    if (in_flight_) {
        return;
    }
    redis::Client* client = this->client();
    if (client == nullptr || !client->available()) {
        run_again(kEveryAway);
        return;
    }
    if (denied_at_ != 0 && loop()->now() < denied_at_ + kEveryDenied && client->connected()) {
        // It would answer.
        state_->set_heard(process().clock());
        return;
    }
    redis::Call* call = client->make_call();
    if (call == nullptr) {
        return;
    }
    call->command.append(question());
    call->slot = slot();
    in_flight_ = true;
    changes_ = state_->changes();
    client->send(call, on_answer, this);
}

void FleetChanges::on_answer(void* self, redis::Error error, std::string_view reply) {
    auto* fleet_changes = static_cast<FleetChanges*>(self);
    fleet_changes->in_flight_ = false;
    // A wrong password is another matter: the connection fails, and so do its other calls, until it is right.
    const redis::Client* client = error == redis::Error::kDenied ? fleet_changes->client() : nullptr;
    const bool denied = client != nullptr && client->lacks_rights();
    if (denied) {
        if (fleet_changes->denied_at_ == 0) {
            fleet_changes->loop()->log(
                redis::Severity::kWarning,
                redis::log_line(client->settings().name, client->where(),
                                "Redis does not let this user read rates that are changed while nginx runs",
                                "changed rates are not followed"));
        }
        fleet_changes->denied_at_ = fleet_changes->loop()->now();
    }
    if (error == redis::Error::kNone) {
        fleet_changes->denied_at_ = 0;
    }
    if (error == redis::Error::kNone || denied) {
        fleet_changes->state_->set_heard(fleet_changes->process().clock());
    }
    if (error == redis::Error::kNone && fleet_changes->changes_ == fleet_changes->state_->changes()) {
        fleet_changes->follow(reply);
    }
}

// Whether the reply is the script's. What is whole of one that is not counts all the same.
bool FleetChanges::follow(std::string_view reply) {
    std::string_view part;
    std::uint64_t moment = 0;
    if (!take_part(&reply, &part) ||
        std::from_chars(part.data(), part.data() + part.size(), moment).ptr != part.data() + part.size()) {
        return false;
    }
    for (FleetZone& zone : zones_) {
        if (!take_part(&reply, &part)) {
            return false;
        }
        follow_rate(&zone, part);
    }
    while (take_part(&reply, &part)) {
        follow_reset(part);
    }
    state_->set_resets_until(moment);
    return reply.empty();
}

void FleetChanges::follow_rate(FleetZone* zone, std::string_view text) {
    std::uint64_t version = 0;
    RateList now = {};
    const LiveRate::Kind kind = zone->live->read(&version, &now);
    Policy candidate = *zone->policy;
    if (!text.empty()) {
        const char* wrong = parse_rates(text, &candidate.rates);
        if (wrong == nullptr && !holds(zone->layout, candidate)) {
            wrong = "the zone has no room for it";
        }
        if (wrong != nullptr) {
            if (zone->refused != text) {
                zone->refused = text;
                loop()->log(redis::Severity::kWarning, "rate \"" + printable(text) +
                                                           "\" that Redis has for zone \"" + zone->name +
                                                           "\" is not used: " + wrong);
            }
            return;
        }
    }
    zone->refused.clear();
    const std::string before = kind == LiveRate::Kind::kRates ? text_of(now) : zone->configured;
    if (text.empty()) {
        if (kind == LiveRate::Kind::kNone) {
            return;
        }
        zone->live->clear();
    } else {
        if (kind == LiveRate::Kind::kRates && same_rates(now, candidate.rates)) {
            return;
        }
        zone->live->set(candidate.rates);
    }
    loop()->log(redis::Severity::kNotice, "rate of zone \"" + zone->name + "\" is now " +
                                              (text.empty() ? zone->configured : text_of(candidate.rates)) +
                                              ", it was " + before);
}

// A member is the instance that has reset the client, the zone and the client, with a blank between.
void FleetChanges::follow_reset(std::string_view member) {
    const std::size_t first = member.find(' ');
    const std::size_t second = first == std::string_view::npos ? first : member.find(' ', first + 1);
    if (second == std::string_view::npos || member.substr(0, first) == print_id(options_.instance)) {
        return;
    }
    const std::string_view name = member.substr(first + 1, second - first - 1);
    const std::string_view client = member.substr(second + 1);
    for (const FleetZone& zone : zones_) {
        if (zone.name != name || !forget_client(zone.table, zone.denials, client, process())) {
            continue;
        }
        // What this instance had counted may have reached Redis after the client was forgotten there.
        const FleetCommand command =
            delete_client(options_.prefix, zone.name, zone.policy->algorithm, client);
        redis::Client* redis = router() != nullptr ? router()->client_of(command.slot) : nullptr;
        redis::Call* call = redis != nullptr && redis->available() ? redis->make_call() : nullptr;
        if (call != nullptr) {
            call->command.append(command.command);
            call->slot = command.slot;
            redis->send(call, ignore, nullptr);
        }
    }
}

FleetCommand change_rate(std::string_view prefix, std::string_view zone, std::string_view rate) {
    const std::string key = rates_key(prefix);
    return {redis::format_command({"EVAL", kChangeRateScript, "1", key, zone, rate}), redis::slot_of(key)};
}

FleetCommand delete_client(std::string_view prefix, std::string_view zone, Algorithm algorithm,
                           std::string_view client) {
    return client_command(kDeleteClientScript, prefix, zone, algorithm, client);
}

FleetCommand find_client(std::string_view prefix, std::string_view zone, Algorithm algorithm,
                         std::string_view client) {
    return client_command(kFindClientScript, prefix, zone, algorithm, client);
}

FleetCommand announce_reset(std::string_view prefix, bool sharded, std::uint64_t instance,
                            std::string_view zone, std::string_view client) {
    const std::string key = resets_key(prefix, sharded);
    const std::string member = print_id(instance) + " " + std::string(zone) + " " + std::string(client);
    return {redis::format_command({"EVAL", kAnnounceResetScript, "1", key, member}), redis::slot_of(key)};
}

bool forget_client(Table* table, Denials* denials, std::string_view client, const Process& process) {
    if (denials != nullptr) {
        denials->forget(denials->hash(client));
    }
    return table != nullptr && table->forget(table->hash(client), process);
}

bool knows_client(Table* table, std::string_view client, const Process& process) {
    const Slot slot = table != nullptr ? table->find(table->hash(client), process) : Slot();
    if (slot.state != nullptr) {
        Table::keep(slot, process);
    }
    return slot.state != nullptr;
}

}  // namespace rate_limit
