// Reads from Redis what other instances have changed, and applies it to this one.
#include "fleet/fleet_changes.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/bytes.h"
#include "core/client_name.h"
#include "fleet/fleet_commands.h"
#include "protocol/key_writer.h"

namespace rate_limit {
namespace {

constexpr redis::Milliseconds kEveryUnavailable = 100;  // while Redis is not available

// While the user lacks the right to call the script. The right may be granted meanwhile; until then, failed
// calls should not disturb others on the same connection.
constexpr redis::Milliseconds kEveryDenied = 30'000;

// Takes the next part of a reply; false if there is none.
bool take_part(std::string_view* rest, std::string_view* part) {
    constexpr std::size_t kSize = 4;
    if (rest->size() < kSize) {
        return false;
    }
    const std::size_t size = little_endian<kSize>(rest->data());
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

void ignore(void*, redis::Error, std::string_view) {}

}  // namespace

FleetChanges::FleetChanges(FleetChangesState* state, std::vector<FleetZone> zones, const Options& options,
                           redis::Router* router, redis::Loop* loop, const Process& process)
    : PeriodicTask(&state->leader(), kEvery, router, loop, process),
      state_(state),
      zones_(std::move(zones)),
      refused_(zones_.size()),
      options_(options) {}

FleetChanges* FleetChanges::make(FleetChangesState* state, std::vector<FleetZone> zones,
                                 const Options& options, redis::Router* router, redis::Loop* loop,
                                 const Process& process) {
    auto* fleet_changes = new FleetChanges(state, std::move(zones), options, router, loop, process);
    fleet_changes->start(options.after);
    if (state->heard() == 0) {
        state->set_heard(process.clock());
    }
    return fleet_changes;
}

// The client of the server that has the key of the rates; null if there is none at present.
redis::Client* FleetChanges::client() const {
    return router() != nullptr ? router()->client_of(changes_slot(options_.prefix)) : nullptr;
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
        run_again(kEveryUnavailable);
        return;
    }
    if (denied_at_ != 0 && loop()->now() < denied_at_ + kEveryDenied && client->connected()) {
        // Redis is connected, so it would reply.
        state_->set_heard(process().clock());
        return;
    }
    changes_ = state_->changes();
    in_flight_ =
        send_command(read_changes(options_.prefix, router()->sharded(), state_->resets_until(), zones_),
                     router(), on_answer, this);
}

void FleetChanges::on_answer(void* self, redis::Error error, std::string_view reply) {
    static_cast<FleetChanges*>(self)->on_answer(error, reply);
}

void FleetChanges::on_answer(redis::Error error, std::string_view reply) {
    in_flight_ = false;
    // kDenied also means a wrong password. Then all calls of the connection fail, and the breaker handles
    // them.
    const redis::Client* client = error == redis::Error::kDenied ? this->client() : nullptr;
    const bool denied = client != nullptr && client->lacks_rights();
    if (denied) {
        if (denied_at_ == 0) {
            loop()->log(
                redis::Severity::kWarning,
                redis::log_line(client->settings().name, client->where(),
                                "Redis does not let this user read rates that are changed while nginx runs",
                                "changed rates are not followed"));
        }
        denied_at_ = loop()->now();
    }
    if (error == redis::Error::kNone) {
        denied_at_ = 0;
    }
    if (error == redis::Error::kNone || denied) {
        state_->set_heard(process().clock());
    }
    if (error == redis::Error::kNone && changes_ == state_->changes()) {
        follow(reply);
    }
}

// Applies a reply. Of a malformed one, the complete parts before the error are applied.
void FleetChanges::follow(std::string_view reply) {
    std::string_view part;
    std::uint64_t moment = 0;
    if (!take_part(&reply, &part) ||
        std::from_chars(part.data(), part.data() + part.size(), moment).ptr != part.data() + part.size()) {
        return;
    }
    for (std::size_t i = 0; i < zones_.size(); i++) {
        if (!take_part(&reply, &part)) {
            return;
        }
        follow_rate(zones_[i], part, &refused_[i]);
    }
    while (take_part(&reply, &part)) {
        follow_reset(part);
    }
    state_->set_resets_until(moment);
}

// Reads a rate that Redis has for a zone. Returns why the zone cannot use it; null if it can.
const char* FleetChanges::objection(const FleetZone& zone, std::string_view text, RateList* rates) {
    Policy changed = *zone.policy;
    const char* wrong = parse_rates(text, &changed.rates);
    if (wrong == nullptr && !holds(zone.layout, changed)) {
        wrong = "the zone has no room for it";
    }
    *rates = changed.rates;
    return wrong;
}

void FleetChanges::follow_rate(const FleetZone& zone, std::string_view text, std::string* refused) {
    RateList wanted = {};
    const char* wrong = text.empty() ? nullptr : objection(zone, text, &wanted);
    if (wrong != nullptr) {
        if (*refused != text) {
            *refused = text;
            loop()->log(redis::Severity::kWarning, "rate \"" + printable(text) +
                                                       "\" that Redis has for zone \"" + zone.name +
                                                       "\" is not used: " + wrong);
        }
        return;
    }
    refused->clear();
    std::uint64_t version = 0;
    RateList live = {};
    const LiveRate::Kind kind = zone.live->read(&version, &live);
    const bool same = text.empty() ? kind == LiveRate::Kind::kNone
                                   : kind == LiveRate::Kind::kRates && same_rates(live, wanted);
    if (!same) {
        const RateTexts texts = change_live_rate(zone, text.empty() ? nullptr : &wanted);
        loop()->log(redis::Severity::kNotice,
                    "rate of zone \"" + zone.name + "\" is now " + texts.now + ", it was " + texts.before);
    }
}

// A member is the id of the instance that has reset the client, the zone and the client, separated by blanks.
void FleetChanges::follow_reset(std::string_view member) {
    const std::size_t first = member.find(' ');
    const std::size_t second = first == std::string_view::npos ? first : member.find(' ', first + 1);
    if (second == std::string_view::npos || member.substr(0, first) == print_id(options_.instance)) {
        return;
    }
    const std::string_view name = member.substr(first + 1, second - first - 1);
    const std::string_view client = member.substr(second + 1);
    for (const FleetZone& zone : zones_) {
        if (zone.name == name && forget_client(zone, client, process()) && router() != nullptr) {
            // A count of this instance may have reached Redis after the key was deleted there.
            send_command(delete_client(options_.prefix, zone.name, zone.policy->algorithm, client), router(),
                         ignore, nullptr);
        }
    }
}

}  // namespace rate_limit
