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

ClientReset::ClientReset(OperationTarget target, std::uint64_t instance, std::string client)
    : target_(std::move(target)), instance_(instance), client_(std::move(client)) {}

FleetCommand ClientReset::deletion() const {
    return delete_client(target_.prefix, target_.zone.name, target_.zone.policy->algorithm, client_);
}

std::vector<FleetCommand> ClientReset::commands(bool sharded) const {
    return {deletion(), announce_reset(target_.prefix, sharded, instance_, target_.zone.name, client_)};
}

void ClientReset::on_reply(std::size_t index, std::string_view reply) {
    constexpr std::size_t kDeleted = 0;
    constexpr std::size_t kAnnounced = 1;
    if (index == kDeleted) {
        known_ = reply != "0";
    }
    if (index == kAnnounced && forget_client(target_.zone, client_, *target_.process)) {
        known_ = forgotten_ = true;
        add(deletion());
    }
}

RateChange::RateChange(OperationTarget target, FleetChangesState* state, const RateList* rates)
    : target_(std::move(target)), state_(state), restores_(rates == nullptr) {
    if (rates != nullptr) {
        rates_ = *rates;
    }
}

std::vector<FleetCommand> RateChange::commands(bool) const {
    char text[kLongestRates];
    const std::string_view rate(text, restores_ ? 0 : print_rates(rates_, text));
    return {change_rate(target_.prefix, target_.zone.name, rate)};
}

void RateChange::on_reply(std::size_t, std::string_view) {
    state_->note_change();
    texts_ = change_live_rate(target_.zone, restores_ ? nullptr : &rates_);
}

ClientLookup::ClientLookup(OperationTarget target, std::string client, Micros* denied_at)
    : target_(std::move(target)), client_(std::move(client)), denied_at_(denied_at) {}

bool ClientLookup::find_here() {
    constexpr Micros kDeniedFor = 30 * kSecond;  // the user may be granted the right meanwhile
    if (knows_client(target_.zone, client_, *target_.process)) {
        known_ = Known::kYes;
        return true;
    }
    if (denied_at_ == nullptr) {
        return true;
    }
    const bool denied = *denied_at_ != 0 && target_.process->clock() - *denied_at_ < kDeniedFor;
    known_ = denied ? Known::kUnsure : Known::kNo;
    return denied;
}

std::vector<FleetCommand> ClientLookup::commands(bool) const {
    return {find_client(target_.prefix, target_.zone.name, target_.zone.policy->algorithm, client_)};
}

void ClientLookup::on_reply(std::size_t, std::string_view reply) {
    known_ = reply != "0" ? Known::kYes : Known::kNo;
}

void ClientLookup::on_error(redis::Error error) {
    known_ = Known::kUnsure;
    if (error == redis::Error::kDenied) {
        *denied_at_ = target_.process->clock();
    }
}

ClientCorrection::ClientCorrection(OperationTarget target, const Policy& policy, std::string client,
                                   bool gives_back, std::uint64_t amount)
    : target_(std::move(target)),
      policy_(policy),
      client_(std::move(client)),
      gives_back_(gives_back),
      amount_(amount) {}

std::vector<FleetCommand> ClientCorrection::commands(bool) const {
    return {correct_client(target_.prefix, target_.zone.name, policy_, target_.zone.layout, client_,
                           gives_back_ ? kUndoRequest : kOverdraw, amount_)};
}

void ClientCorrection::on_reply(std::size_t, std::string_view reply) {
    if (gives_back_ && target_.zone.denials != nullptr) {
        target_.zone.denials->forget(target_.zone.denials->hash(client_));
    }
    if (!decode_time(&reply, &time_) || !decode_decision(&reply, policy_, &decision_) || !reply.empty()) {
        fail(redis::Error::kShape);
    }
}

}  // namespace rate_limit
