// Changes the phase of a connection, and counts its commands in flight.
#include "redis/tracked_connection.h"

#include <hiredis/async.h>

namespace rate_limit::redis {

bool TrackedConnection::open(const Endpoint::Target& target, std::string* line) {
    attempted_at_ = loop_->now();
    in_flight_ = 0;
    phase_ = connection_.open(target, line) ? Phase::kConnecting : Phase::kClosed;
    return connected();
}

void TrackedConnection::close() {
    phase_ = Phase::kClosed;
    connection_.close();
}

void TrackedConnection::probe(std::string_view command) {
    attempted_at_ = loop_->now();
    if (send(command, on_probe_reply, this)) {
        phase_ = Phase::kProbing;
    }
}

void TrackedConnection::on_probe_reply(redisAsyncContext*, void* reply, void* self_pointer) {
    auto* self = static_cast<TrackedConnection*>(self_pointer);
    self->phase_ = self->probing() ? Phase::kReady : self->phase_;
    self->count_reply(reply);
    if (reply != nullptr) {
        self->owner_->on_probed(self, *static_cast<const redisReply*>(reply));
    }
}

void TrackedConnection::nudge() {
    // Users who may run the script may run TIME, too.
    send("*1\r\n$4\r\nTIME\r\n", on_nudge_reply, this);
}

void TrackedConnection::on_nudge_reply(redisAsyncContext*, void* reply, void* self_pointer) {
    auto* self = static_cast<TrackedConnection*>(self_pointer);
    self->count_reply(reply);
    if (reply != nullptr) {
        self->owner_->on_nudged(self);
    }
}

void TrackedConnection::on_ready() {
    phase_ = Phase::kReady;
    heard_at_ = silent_since_ = loop_->now();
    owner_->on_ready(this);
}

void TrackedConnection::on_lost(Error error, std::string_view line) {
    const bool was_ready = ready();
    phase_ = Phase::kClosed;
    owner_->on_lost(this, was_ready, error, line);
}

}  // namespace rate_limit::redis
