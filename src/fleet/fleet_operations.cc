// Sends the commands of an operation one after the other.
#include "fleet/fleet_operations.h"

#include <utility>

namespace rate_limit {

void FleetOperation::start(redis::Router* router, Done done, void* self) {
    router_ = router;
    done_ = done;
    self_ = self;
    commands_ = commands(router->sharded());
    send_next();
}

void FleetOperation::send_next() {
    if (!send_command(commands_[next_], router_, on_answer, this)) {
        error_ = redis::Error::kUnavailable;
        on_error(error_);
        done_(self_);
    }
}

void FleetOperation::on_answer(void* self, redis::Error error, std::string_view reply) {
    auto* operation = static_cast<FleetOperation*>(self);
    if (error != redis::Error::kNone) {
        operation->error_ = error;
        operation->on_error(error);
        operation->done_(operation->self_);
        return;
    }
    operation->on_reply(operation->next_++, reply);
    if (operation->next_ < operation->commands_.size()) {
        operation->send_next();
    } else {
        operation->done_(operation->self_);
    }
}

ClientReset::ClientReset(OperationTarget place, std::uint64_t instance, std::string client)
    : place_(std::move(place)), instance_(instance), client_(std::move(client)) {}

FleetCommand ClientReset::deletion() const {
    return delete_client(place_.prefix, place_.zone.name, place_.zone.policy->algorithm, client_);
}

std::vector<FleetCommand> ClientReset::commands(bool sharded) const {
    return {deletion(), announce_reset(place_.prefix, sharded, instance_, place_.zone.name, client_)};
}

void ClientReset::on_reply(std::size_t index, std::string_view reply) {
    constexpr std::size_t kDeleted = 0;
    constexpr std::size_t kAnnounced = 1;
    if (index == kDeleted) {
        known_ = reply != "0";
    }
    if (index == kAnnounced && forget_client(place_.zone, client_, *place_.process)) {
        known_ = forgotten_ = true;
        add(deletion());
    }
}

RateChange::RateChange(OperationTarget place, FleetChangesState* state, const RateList* rates)
    : place_(std::move(place)), state_(state), restores_(rates == nullptr) {
    if (rates != nullptr) {
        rates_ = *rates;
    }
}

std::vector<FleetCommand> RateChange::commands(bool) const {
    char text[kLongestRates];
    const std::string_view rate(text, restores_ ? 0 : print_rates(rates_, text));
    return {change_rate(place_.prefix, place_.zone.name, rate)};
}

void RateChange::on_reply(std::size_t, std::string_view) {
    state_->note_change();
    texts_ = change_live_rate(place_.zone, restores_ ? nullptr : &rates_);
}

ClientLookup::ClientLookup(OperationTarget place, std::string client, Micros* denied_at)
    : place_(std::move(place)), client_(std::move(client)), denied_at_(denied_at) {}

bool ClientLookup::find_here() {
    constexpr Micros kDeniedFor = 30 * kSecond;  // the user may be granted the right meanwhile
    if (knows_client(place_.zone, client_, *place_.process)) {
        known_ = Known::kYes;
        return true;
    }
    if (denied_at_ == nullptr) {
        return true;
    }
    const bool denied = *denied_at_ != 0 && place_.process->clock() - *denied_at_ < kDeniedFor;
    known_ = denied ? Known::kUnsure : Known::kNo;
    return denied;
}

std::vector<FleetCommand> ClientLookup::commands(bool) const {
    return {find_client(place_.prefix, place_.zone.name, place_.zone.policy->algorithm, client_)};
}

void ClientLookup::on_reply(std::size_t, std::string_view reply) {
    known_ = reply != "0" ? Known::kYes : Known::kNo;
}

void ClientLookup::on_error(redis::Error error) {
    known_ = Known::kUnsure;
    if (error == redis::Error::kDenied) {
        *denied_at_ = place_.process->clock();
    }
}

ClientCorrection::ClientCorrection(OperationTarget place, const Policy& policy, std::string client,
                                   bool gives_back, std::uint64_t amount)
    : place_(std::move(place)),
      policy_(policy),
      client_(std::move(client)),
      gives_back_(gives_back),
      amount_(amount) {}

std::vector<FleetCommand> ClientCorrection::commands(bool) const {
    return {correct_client(place_.prefix, place_.zone.name, policy_, place_.zone.layout, client_,
                           gives_back_ ? kUndoRequest : kOverdraw, amount_)};
}

void ClientCorrection::on_reply(std::size_t, std::string_view reply) {
    if (gives_back_ && place_.zone.denials != nullptr) {
        place_.zone.denials->forget(place_.zone.denials->hash(client_));
    }
    if (!decode_time(&reply, &time_) || !decode_decision(&reply, policy_, &decision_) || !reply.empty()) {
        fail(redis::Error::kShape);
    }
}

}  // namespace rate_limit
