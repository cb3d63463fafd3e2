// Counts what is sent and heard on a connection.
#include "redis/lane.h"

namespace rate_limit::redis {

bool Lane::open(const Endpoint::Target& target, std::string* line) {
    tried_at_ = loop_->now();
    in_flight_ = 0;
    phase_ = connection_.open(target, line) ? Phase::kConnecting : Phase::kClosed;
    return connected();
}

void Lane::close() {
    phase_ = Phase::kClosed;
    connection_.close();
}

void Lane::probe(std::string_view command, Connection::Reply reply) {
    tried_at_ = loop_->now();
    if (send(command, reply, this)) {
        phase_ = Phase::kProbing;
    }
}

void Lane::nudge(Connection::Reply reply) {
    // TIME is among what a user of the script may call.
    send("*1\r\n$4\r\nTIME\r\n", reply, this);
}

void Lane::on_ready() {
    phase_ = Phase::kReady;
    heard_at_ = quiet_since_ = loop_->now();
    owner_->on_ready(this);
}

void Lane::on_lost(Error error, std::string_view line) {
    const bool was_ready = ready();
    phase_ = Phase::kClosed;
    owner_->on_lost(this, was_ready, error, line);
}

}  // namespace rate_limit::redis
