// Counts what is sent and heard on a connection.
#include "redis/lane.h"

namespace rate_limit::redis {

bool Lane::open(const Endpoint::Target& target, std::string* line) {
    tried_at_ = loop_->now();
    greeted_ = probing_ = false;
    in_flight_ = 0;
    return connection_.open(target, line);
}

void Lane::close() {
    greeted_ = probing_ = false;
    connection_.close();
}

void Lane::probe(std::string_view command, Connection::Reply reply) {
    tried_at_ = loop_->now();
    probing_ = send(command, reply, this);
}

void Lane::nudge(Connection::Reply reply) {
    // TIME is among what a user of the script may call.
    send("*1\r\n$4\r\nTIME\r\n", reply, this);
}

void Lane::on_ready() {
    greeted_ = true;
    heard_at_ = quiet_since_ = loop_->now();
    owner_->on_ready(this);
}

void Lane::on_lost(Error error, std::string_view line) {
    const bool greeted = greeted_;
    greeted_ = probing_ = false;
    owner_->on_lost(this, greeted, error, line);
}

}  // namespace rate_limit::redis
