// Which of a client's connections calls leave by, and which are made or probed while Redis is silent.
#include <algorithm>

#include "redis/client.h"

namespace rate_limit::redis {
namespace {

constexpr Milliseconds kKeepSpare = 60'000;

}  // namespace

// The connection by which a call leaves now; null if the call waits for one.
Lane* Client::way() {
    if (other_than(way_)->connected()) {
        return choose_way();
    }
    return way_->ready() ? way_ : nullptr;
}

Lane* Client::choose_way() {
    Lane* other = other_than(way_);
    if (other->ready() &&
        (!way_->ready() || (way_->silent_for(patience()) && !other->silent_for(patience())))) {
        if (way_->ready()) {
            way_->nudge(on_nudge);
        }
        way_ = other;
    }
    // One that is being made may serve sooner than one that is silent.
    const bool waits = other->connected() && !other->ready() && way_->silent_for(patience());
    return way_->ready() && !waits ? way_ : nullptr;
}

// Issues the calls that wait for a connection.
void Client::issue_waiting() {
    Lane* lane = calls_wait_ ? way() : nullptr;
    if (lane == nullptr) {
        return;
    }
    calls_wait_ = false;
    for (Call* call = first_; call != nullptr; call = call->next) {
        if (!call->issued) {
            issue(call, lane);
        }
    }
}

Milliseconds Client::usual_patience() const {
    const Milliseconds least = std::max<Milliseconds>(settings_.timeout / 4, 1);
    return std::max(least, std::min(usual_ * 2 / kUsualParts, settings_.timeout / 2));
}

// A call has been answered in time.
void Client::note_round_trip(Milliseconds took) {
    const Milliseconds forgotten = usual_ / kUsualParts;
    if (took != forgotten) {
        usual_ += took - forgotten;
        patience_ = usual_patience();
    }
}

// Redis has said something.
void Client::heard(const Lane* lane) {
    heard_at_ = lane->heard_at();
    spare_helped_ = spare_helped_ || other_than(lane)->silent_for(patience());
    issue_waiting();
}

// Whether a call that has timed out tells of its connection alone: Redis has answered by the other one.
bool Client::is_held_up(const Call& call) const {
    return call.issued && call.lane->heard_at() <= call.sent_at && heard_at_ > call.sent_at;
}

// When the calls that wait are to be looked at.
Milliseconds Client::next_look() const {
    if (!settings_.spare || !available() || !way_->in_flight()) {
        return first_->deadline;
    }
    return std::min(first_->deadline, std::max(way_->quiet_since(), looked_at_) + patience());
}

// A packet may be lost, and then all that is sent after it waits until the kernel repeats it. Calls that come
// leave by the other connection meanwhile.
void Client::look_at_way() {
    if (!settings_.spare || !available() || !way_->ready() || !way_->silent_for(patience())) {
        return;
    }
    looked_at_ = loop_->now();
    Lane* silent = way_;
    Lane* other = other_than(way_);
    if (!other->connected()) {
        open_spare(other);
    } else if (other->ready() && !other->in_flight()) {
        other->nudge(on_nudge);
    }
    way();
    if (way_ == silent) {
        silent->nudge(on_nudge);
    }
}

void Client::open_spare(Lane* lane) {
    constexpr Milliseconds kEvery = 1000;
    if (lane->tried_at() != 0 && loop_->now() < lane->tried_at() + kEvery) {
        return;
    }
    const Endpoint::Target target = endpoint_->target();
    std::string line;
    if (!target.address.empty() && !lane->open(target, &line)) {
        complain(Error::kRefused, line, Effect::kNone);
    }
    rest();
}

void Client::on_nudge(redisAsyncContext*, void* reply, void* self) {
    auto* lane = static_cast<Lane*>(self);
    lane->replied(reply);
    if (reply != nullptr) {
        static_cast<Client*>(lane->owner())->heard(lane);
    }
}

// An attempt has not succeeded within connect_timeout.
void Client::end_attempt(Lane* lane) {
    if (available() && other_than(lane)->ready()) {
        lane->close();
        issue_waiting();
        return;
    }
    fail_connection(
        lane, Error::kTimedOut,
        lane->probing() ? "the probe was not answered" : std::string(lane->awaited()) + " (connect_timeout)");
}

// The breaker is open: probes all connections, or makes one, unless each has an attempt that still has time.
void Client::try_again() {
    Lane* other = other_than(way_);
    bool probed = false;
    for (Lane* lane : {way_, other}) {
        if (lane->ready() && !lane->probing()) {
            probe(lane);
            probed = true;
        }
    }
    if (probed) {
        // A probe, too, may be a packet that was lost.
        retry_->arm(settings_.spare ? patience() : settings_.connect_timeout);
        return;
    }
    for (Lane* lane : {way_, other}) {
        if (lane->probing() && settings_.spare) {
            lane->nudge(on_nudge);
        }
    }
    if (!way_->connected()) {
        connect(way_);
    } else if (!other->connected() && settings_.spare) {
        connect(other);
    } else {
        watch_attempt(other->trying() && other->tried_at() < way_->tried_at() ? *other : *way_);
    }
}

// How long an attempt may be the only one. While packets are lost, the kernel repeats them ever less often;
// with a second connection, an attempt that is not answered gets a rival before its time is over.
Milliseconds Client::next_attempt_after() {
    constexpr Milliseconds kLeast = 250;
    if (!settings_.spare) {
        return settings_.connect_timeout;
    }
    const Milliseconds half = std::max(settings_.connect_timeout / 2, kLeast);
    return half + loop_->random() % (half / 4 + 1);
}

void Client::watch_attempt(const Lane& lane) {
    const Milliseconds end = lane.tried_at() + settings_.connect_timeout;
    retry_->arm(end > loop_->now() ? end - loop_->now() : 0);
}

// The breaker is closed: a connection that is being made has a time to watch, and one that is not needed.
void Client::rest() {
    for (const Lane& lane : lanes_) {
        if (lane.connected() && !lane.ready()) {
            watch_attempt(lane);
            return;
        }
    }
    if (way_->ready() && other_than(way_)->ready()) {
        const Milliseconds end = other_than(way_)->heard_at() + kKeepSpare;
        retry_->arm(end > loop_->now() ? end - loop_->now() : kKeepSpare);
    } else {
        retry_->disarm();
    }
}

// Ends a second connection that was not needed for long.
void Client::end_idle_spare() {
    Lane* spare = other_than(way_);
    if (way_->ready() && spare->ready() && !spare->in_flight() &&
        loop_->now() >= spare->heard_at() + kKeepSpare) {
        spare->close();
        spare_helped_ = false;
    }
}

// Redis has answered a probe or a greeting. After an outage a second connection is kept only if Redis has
// answered by one while the other was silent.
void Client::close_breaker(Lane* lane) {
    Lane* other = other_than(lane);
    if (!breaker_.half_close()) {
        return;
    }
    const bool was_reachable = phase_ == Phase::kFailing;
    enter(Phase::kServing);
    way_ = lane;
    if (!spare_helped_ || !other->ready()) {
        other->close();
    }
    report_recovery(was_reachable);
}

}  // namespace rate_limit::redis
