// Changes the phase of a client, makes attempts to connect and probe, and chooses the connection for calls.
#include "redis/connector.h"

#include <hiredis/async.h>

#include <algorithm>
#include <utility>

namespace rate_limit::redis {
namespace {

constexpr Milliseconds kKeepSpare = 60'000;  // an idle second connection

// The address as configured, until one was tried.
std::string configured_target(const Address& address) {
    if (!address.path.empty()) {
        return "unix:" + address.path;
    }
    if (!address.host.empty()) {
        return print_target(address.host, address.port);
    }
    return address.primary.empty() ? "cluster" : "primary \"" + address.primary + "\"";
}

}  // namespace

Connector::Connector(const Settings& settings, std::unique_ptr<Endpoint> endpoint, Loop* loop, Owner* owner)
    : settings_(settings),
      loop_(loop),
      owner_(owner),
      endpoint_(std::move(endpoint)),
      connections_{{settings, loop, this}, {settings, loop, this}},
      retry_(loop->make_timer([](void* self) { static_cast<Connector*>(self)->on_retry(); }, this, false)),
      patience_(mean_patience()),
      where_(configured_target(settings.address)) {
    endpoint_->set_owner(this);
}

Connector::~Connector() { delete retry_; }

void Connector::open() {
    if (available() && !owner_->has_calls() && !has_connection() && !retry_->armed()) {
        enter(Phase::kOpening);
        retry_->arm(0);
    }
}

void Connector::close() {
    for (TrackedConnection& connection : connections_) {
        connection.close();
    }
}

TrackedConnection* Connector::connection_for_call() {
    if (opening()) {
        enter(Phase::kServing);
    }
    TrackedConnection* connection = choose();
    if (connection == nullptr && !has_connection() && !retry_->armed()) {
        // The timer connects: connecting may fail at once, and the owner must not be called from here.
        retry_->arm(0);
    }
    return connection;
}

TrackedConnection* Connector::choose() {
    if (other_than(active_)->connected()) {
        return choose_of_two();
    }
    return active_->ready() ? active_ : nullptr;
}

TrackedConnection* Connector::choose_of_two() {
    TrackedConnection* other = other_than(active_);
    if (other->ready() &&
        (!active_->ready() || (active_->silent_for(patience_) && !other->silent_for(patience_)))) {
        if (active_->ready()) {
            active_->nudge();
        }
        active_ = other;
    }
    // A connection in its handshake may serve sooner than one that is silent.
    const bool waits = other->connecting() && active_->silent_for(patience_);
    return active_->ready() && !waits ? active_ : nullptr;
}

Milliseconds Connector::mean_patience() const {
    const Milliseconds least = std::max<Milliseconds>(settings_.timeout / 4, 1);
    return std::max(least, std::min(mean_round_trip_ * 2 / kMeanWeight, settings_.timeout / 2));
}

void Connector::note_round_trip(Milliseconds took) {
    const Milliseconds mean = mean_round_trip_ / kMeanWeight;
    if (took != mean) {
        mean_round_trip_ += took - mean;
        patience_ = mean_patience();
    }
}

void Connector::hear(const TrackedConnection* connection) {
    heard_at_ = connection->heard_at();
    spare_helped_ = spare_helped_ || other_than(connection)->silent_for(patience_);
    owner_->on_answering();
}

bool Connector::is_held_up(const TrackedConnection& connection, Milliseconds sent_at) const {
    return connection.heard_at() <= sent_at && heard_at_ > sent_at;
}

Milliseconds Connector::next_check(Milliseconds deadline) const {
    if (!settings_.spare || !available() || !active_->in_flight()) {
        return deadline;
    }
    return std::min(deadline, std::max(active_->silent_since(), checked_at_) + patience_);
}

void Connector::check_silence() {
    if (!settings_.spare || !available() || !active_->ready() || !active_->silent_for(patience_)) {
        return;
    }
    checked_at_ = loop_->now();
    TrackedConnection* silent = active_;
    TrackedConnection* other = other_than(active_);
    if (!other->connected()) {
        open_spare(other);
    } else if (other->ready() && !other->in_flight()) {
        other->nudge();
    }
    choose();
    if (active_ == silent) {
        silent->nudge();
    }
}

void Connector::open_spare(TrackedConnection* connection) {
    constexpr Milliseconds kEvery = 1000;
    if (connection->attempted_at() != 0 && loop_->now() < connection->attempted_at() + kEvery) {
        return;
    }
    const Endpoint::Target target = endpoint_->target();
    std::string line;
    if (!target.address.empty() && !connection->open(target, &line)) {
        complain(Error::kRefused, line, Effect::kNone);
    }
    rearm();
}

void Connector::close_idle_spare() {
    TrackedConnection* spare = other_than(active_);
    if (active_->ready() && spare->ready() && !spare->in_flight() &&
        loop_->now() >= spare->heard_at() + kKeepSpare) {
        spare->close();
        spare_helped_ = false;
    }
}

void Connector::on_retry() {
    for (TrackedConnection& connection : connections_) {
        const bool attempting = available() ? connection.connecting() : connection.attempting();
        if (attempting && loop_->now() >= connection.attempted_at() + settings_.connect_timeout) {
            end_attempt(&connection);
        }
    }
    if (!available()) {
        // With a spare, the next attempt needs no pause: the last one has taken connect_timeout.
        if (settings_.spare || !retry_->armed()) {
            attempt_again();
        }
    } else if (!has_connection() && (owner_->has_calls() || opening())) {
        connect(active_);
    } else {
        close_idle_spare();
        rearm();
    }
}

// An attempt has not succeeded within connect_timeout.
void Connector::end_attempt(TrackedConnection* connection) {
    if (available() && other_than(connection)->ready()) {
        connection->close();
        owner_->on_answering();
        return;
    }
    fail_connection(connection, Error::kTimedOut,
                    connection->probing() ? "the probe was not answered"
                                          : std::string(connection->awaited()) + " (connect_timeout)");
}

// The breaker is open: probes all connections that are ready, else connects, unless attempts are in progress.
void Connector::attempt_again() {
    TrackedConnection* other = other_than(active_);
    bool probed = false;
    for (TrackedConnection* connection : {active_, other}) {
        if (connection->ready() && !connection->probing()) {
            connection->probe(settings_.probe);
            probed = true;
        }
    }
    if (probed) {
        // The packet of a probe may be lost, too.
        retry_->arm(settings_.spare ? patience_ : settings_.connect_timeout);
        return;
    }
    for (TrackedConnection* connection : {active_, other}) {
        if (connection->probing() && settings_.spare) {
            connection->nudge();
        }
    }
    if (!active_->connected()) {
        connect(active_);
    } else if (!other->connected() && settings_.spare) {
        connect(other);
    } else {
        watch_attempt(other->attempting() && other->attempted_at() < active_->attempted_at() ? *other
                                                                                             : *active_);
    }
}

// How long an attempt may be the only one. The kernel retransmits lost packets at growing intervals. So, with
// a second connection, an attempt without an answer gets a competitor before connect_timeout.
Milliseconds Connector::next_attempt_after() {
    constexpr Milliseconds kLeast = 250;
    if (!settings_.spare) {
        return settings_.connect_timeout;
    }
    const Milliseconds half = std::max(settings_.connect_timeout / 2, kLeast);
    return half + loop_->random() % (half / 4 + 1);
}

void Connector::watch_attempt(const TrackedConnection& connection) {
    const Milliseconds end = connection.attempted_at() + settings_.connect_timeout;
    retry_->arm(end > loop_->now() ? end - loop_->now() : 0);
}

// Sets the timer for a closed breaker: it watches a connection in its handshake, else a second connection
// that may be idle. If a call has failed meanwhile and opened the breaker again, the timer is already set for
// the next attempt.
void Connector::rearm() {
    if (!available()) {
        return;
    }
    for (const TrackedConnection& connection : connections_) {
        if (connection.connecting()) {
            watch_attempt(connection);
            return;
        }
    }
    if (active_->ready() && other_than(active_)->ready()) {
        const Milliseconds end = other_than(active_)->heard_at() + kKeepSpare;
        retry_->arm(end > loop_->now() ? end - loop_->now() : kKeepSpare);
    } else {
        retry_->disarm();
    }
}

void Connector::connect(TrackedConnection* connection) {
    const Endpoint::Target target = endpoint_->target();
    if (target.address.empty() && target.trouble == nullptr) {
        // The endpoint calls on_moved() when it knows the address.
        retry_->arm(settings_.connect_timeout);
        return;
    }
    where_ = target.address.empty() || !settings_.address.path.empty()
                 ? configured_target(settings_.address)
                 : print_target(target.address, target.port);
    if (target.address.empty()) {
        fail_connection(connection, target.error, target.trouble);
        return;
    }
    if (target.trouble != nullptr) {
        complain(Error::kUnresolved, target.trouble, Effect::kNone);
    }
    std::string line;
    if (!connection->open(target, &line)) {
        fail_connection(connection, Error::kRefused, line);
    } else {
        retry_->arm(available() ? settings_.connect_timeout : next_attempt_after());
    }
}

void Connector::fail_connection(TrackedConnection* connection, Error error, std::string_view line) {
    if (opening()) {
        // No call waits. The first call connects again, and logs the error.
        enter(Phase::kServing);
        retry_->disarm();
        connection->close();
        return;
    }
    const std::string kept(line);
    endpoint_->suspect();
    complain(error, kept, Effect::kUnreachable);
    enter(Phase::kUnreachable);
    owner_->on_unreachable(error);
    connection->close();
    if (!other_than(connection)->attempting() || !retry_->armed()) {
        retry_->arm(breaker_.next_delay(loop_->random()));
    }
}

void Connector::on_ready(TrackedConnection* connection) {
    if (opening()) {
        enter(Phase::kServing);
    }
    heard_at_ = loop_->now();
    close_breaker(connection);
    rearm();
    owner_->on_answering();
}

void Connector::on_lost(TrackedConnection* connection, bool was_ready, Error error, std::string_view line) {
    if (!available() || (!was_ready && !other_than(connection)->ready())) {
        fail_connection(connection, error, line);
        return;
    }
    // A connection that Redis closes is not a failure: the next call connects again.
    if (!was_ready || error != Error::kClosed) {
        complain(error, line, Effect::kNone);
    }
    rearm();
    owner_->on_answering();
}

// The server has another address: the old one does not answer what is in flight.
void Connector::on_moved() {
    if (has_connection()) {
        owner_->fail_calls(Error::kClosed);
        close();
    }
    if (!available() || owner_->has_calls() || opening()) {
        retry_->arm(0);
    } else {
        retry_->disarm();
    }
}

void Connector::on_probed(TrackedConnection* connection, const redisReply& reply) {
    hear(connection);
    if (reply.type != REDIS_REPLY_ERROR) {
        close_breaker(connection);
        return;
    }
    const std::string_view text(reply.str, reply.len);
    const Error error = classify(text);
    if (owner_->is_slot_error(error, text)) {
        close_breaker(connection);
        return;
    }
    complain(error, text);
    if (error == Error::kReadOnly && endpoint_->wants_primary()) {
        endpoint_->suspect();
    }
    retry_->arm(breaker_.next_delay(loop_->random()));
}

void Connector::note_read_only(std::string_view line) {
    if (endpoint_->wants_primary()) {
        endpoint_->suspect();
        trip(Error::kReadOnly, line);
    }
}

// Changes the phase. Opens the breaker if the phase requires that; to close the breaker is up to the caller,
// because an answer to a call and one to a probe do so differently. Calls the owner when the breaker has
// opened or closed.
void Connector::enter(Phase next) {
    const bool was_available = available();
    phase_ = next;
    if (!available()) {
        breaker_.trip();
    }
    if (was_available != available()) {
        owner_->on_breaker(was_available);
    }
}

void Connector::note_failure(Error error, std::string_view line) {
    if (breaker_.failure()) {
        trip(error, line);
    }
}

void Connector::trip(Error error, std::string_view line) {
    if (!available()) {
        return;
    }
    enter(Phase::kFailing);
    complain(error, line);
    if (ready()) {
        retry_->arm(breaker_.next_delay(loop_->random()));
    } else if (settings_.spare && retry_->armed()) {
        retry_->arm(next_attempt_after());
    }
}

void Connector::note_success() {
    const Phase before = phase_;
    if (breaker_.success()) {
        enter(Phase::kServing);
        report_recovery(before);
    }
}

// Redis has answered a probe or the handshake. After an outage, a second connection is kept only if Redis has
// answered by one while the other was silent.
void Connector::close_breaker(TrackedConnection* connection) {
    const Phase before = phase_;
    if (!breaker_.half_close()) {
        return;
    }
    enter(Phase::kServing);
    active_ = connection;
    TrackedConnection* other = other_than(connection);
    if (!spare_helped_ || !other->ready()) {
        other->close();
    }
    report_recovery(before);
}

// The breaker has closed.
void Connector::report_recovery(Phase before) {
    rearm();
    // A quiet client has logged nothing of an outage during which it stayed connected.
    const bool logged = !settings_.quiet || before == Phase::kUnreachable;
    if (logged && journal().may_report_recovery(settings_.node, loop_->now())) {
        loop_->log(Severity::kNotice,
                   log_line(settings_.name, where_, "answers again",
                            settings_.consequence != nullptr ? settings_.consequence->recovered : ""));
    }
}

void Connector::complain(Error error, std::string_view line, Effect effect) {
    if (settings_.quiet && effect != Effect::kUnreachable) {
        return;
    }
    const bool requests =
        effect == Effect::kUnreachable || (effect == Effect::kFailed && !settings_.background);
    std::string_view consequence;
    if (effect == Effect::kNone) {
        consequence = "no request is affected";
    } else if (settings_.consequence != nullptr) {
        consequence = effect == Effect::kUnreachable ? settings_.consequence->unreachable
                                                     : settings_.consequence->failed;
    }
    journal().complain({settings_.name, where_, settings_.node,
                        requests ? Journal::kRequests : Journal::kOther, error, line, consequence},
                       loop_);
}

}  // namespace rate_limit::redis
