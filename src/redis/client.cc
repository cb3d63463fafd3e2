// Sends calls, watches their deadlines, and decides when Redis is worth asking again.
#include "redis/client.h"

#include <hiredis/async.h>

#include <new>
#include <utility>

#include "redis/named_endpoint.h"

namespace rate_limit::redis {
namespace {

// The address as configured, for as long as none was tried.
std::string configured_place(const Address& address) {
    if (!address.path.empty()) {
        return "unix:" + address.path;
    }
    if (!address.host.empty()) {
        return print_target(address.host, address.port);
    }
    return address.primary.empty() ? "cluster" : "primary \"" + address.primary + "\"";
}

// Whether an error tells of the call's keys alone, and nothing of the server.
bool is_of_slot(Error error, std::string_view text) {
    return error == Error::kMoved || error == Error::kAsk || error == Error::kTryAgain ||
           (error == Error::kClusterDown && text.find("Hash slot") != std::string_view::npos);
}

}  // namespace

Client::Client(const Settings& settings, std::unique_ptr<Endpoint> endpoint, Loop* loop)
    : settings_(settings),
      loop_(loop),
      lanes_{{settings, loop, this}, {settings, loop, this}},
      endpoint_(std::move(endpoint)),
      patience_(usual_patience()),
      where_(configured_place(settings.address)) {
    endpoint_->set_owner(this);
}

Client* Client::make(const Settings& settings, const std::vector<std::string>& addresses, Loop* loop) {
    auto* host = new (std::nothrow) NamedEndpoint(settings.address, addresses);
    return host != nullptr ? make_with(settings, std::unique_ptr<Endpoint>(host), loop) : nullptr;
}

Client* Client::make_with(const Settings& settings, std::unique_ptr<Endpoint> endpoint, Loop* loop) {
    auto* client = new (std::nothrow) Client(settings, std::move(endpoint), loop);
    if (client == nullptr) {
        return nullptr;
    }
    client->deadline_ =
        loop->make_timer([](void* self) { static_cast<Client*>(self)->on_deadline(); }, client, true);
    client->retry_ =
        loop->make_timer([](void* self) { static_cast<Client*>(self)->on_retry(); }, client, false);
    if (client->deadline_ == nullptr || client->retry_ == nullptr) {
        delete client;
        return nullptr;
    }
    return client;
}

Client::~Client() {
    if (deadline_ != nullptr) {
        fail_waiting(Error::kClosed);
    }
    for (Lane& lane : lanes_) {
        lane.close();
    }
    if (settings_.observer != nullptr && !available()) {
        settings_.observer->on_close();
    }
    while (free_ != nullptr) {
        Call* call = free_;
        free_ = call->next;
        delete call;
    }
    delete deadline_;
    delete retry_;
}

void Client::open() {
    if (available() && first_ == nullptr && !has_connection() && !retry_->armed()) {
        enter(Phase::kOpening);
        retry_->arm(0);
    }
}

Call* Client::make_call() {
    Call* call = free_;
    if (call != nullptr) {
        free_ = call->next;
    } else {
        call = new (std::nothrow) Call;
    }
    if (call != nullptr) {
        call->client = this;
        call->command.clear();
        call->issued = false;
        call->repeated = false;
        call->asking = false;
        call->moves = 0;
    }
    return call;
}

void Client::send(Call* call, Call::Answer answer, void* self) { send(call, answer, self, loop_->now()); }

void Client::send(Call* call, Call::Answer answer, void* self, Milliseconds since) {
    call->answer = answer;
    call->self = self;
    call->deadline = since + settings_.timeout;
    accept(call);
}

void Client::accept(Call* call) {
    call->sent_at = loop_->now();
    if (phase_ == Phase::kOpening) {
        enter(Phase::kServing);
    }
    counts_.calls++;
    enlist(call);
    if (Lane* lane = way()) {
        issue(call, lane);
    } else {
        calls_wait_ = true;
        if (!has_connection() && !retry_->armed()) {
            // Later, because it may fail at once.
            retry_->arm(0);
        }
    }
    const Milliseconds look = next_look();
    if (!deadline_->armed() || look < watched_) {
        watch(look);
    }
}

void Client::issue(Call* call, Lane* lane) const {
    if (call->asking) {
        lane->send("*1\r\n$6\r\nASKING\r\n");
    }
    if (settings_.observer != nullptr) {
        call->issued_at = settings_.observer->now();
    }
    // If there is no memory, the deadline answers it.
    call->lane = lane;
    call->issued = lane->send(call->command.view(), on_reply, call);
}

void Client::on_reply(redisAsyncContext* context, void* reply, void* self) {
    auto* call = static_cast<Call*>(self);
    Client* client = call->client;
    call->issued = false;
    call->lane->replied(reply);
    if (reply != nullptr) {
        client->answered(call, reply);
        return;
    }
    const Error lost = Connection::loss(context);
    if (call->answer != nullptr) {
        client->complain(lost, Connection::loss_line(context));
    }
    client->finish(call, lost, {});
}

void Client::answered(Call* call, const void* answer) {
    const auto* reply = static_cast<const redisReply*>(answer);
    heard(call->lane);
    if (settings_.observer != nullptr) {
        settings_.observer->on_round_trip(settings_.observer->now() - call->issued_at);
    }
    if (call->answer == nullptr) {
        // Too late to be of use to anybody, and so no sign that Redis is worth asking.
        finish(call, Error::kTimedOut, {});
        return;
    }
    note_round_trip(heard_at_ - call->sent_at);
    if (reply->type == REDIS_REPLY_STRING) {
        const std::uint64_t distrusted = distrusted_;
        finish(call, Error::kNone, {reply->str, reply->len});
        if (distrusted == distrusted_) {
            succeed();
        }
        return;
    }
    if (reply->type != REDIS_REPLY_ERROR) {
        complain(Error::kShape, "a reply is not the script's");
        finish(call, Error::kShape, {});
        return;
    }
    const std::string_view text(reply->str, reply->len);
    const Error error = classify(text);
    lacks_rights_ = error == Error::kDenied ? redis::lacks_rights(text) : lacks_rights_;
    if (error == Error::kNoScript && !call->repeated) {
        call->repeated = true;
        count(error);
        if (call->lane->ready() && call->lane->load_script()) {
            issue(call, call->lane);
            return;
        }
    }
    if (redirected(call, error, text)) {
        return;
    }
    complain(error, text);
    if (redirector_ != nullptr && is_of_slot(error, text)) {
        redirector_->on_trouble();
        succeed();
        give_up(call, error);
        return;
    }
    finish(call, error, {});
    if (error == Error::kReadOnly && endpoint_->wants_primary()) {
        // It was the primary, and is no longer. Not from here: hiredis is at work.
        endpoint_->suspect();
        open_breaker(error, text);
    }
}

void Client::count(Error error) {
    counts_.errors[static_cast<unsigned>(error)]++;
    if (settings_.observer != nullptr) {
        settings_.observer->on_error(error);
    }
}

// Whether a call goes on to where the server has pointed.
bool Client::redirected(Call* call, Error error, std::string_view text) {
    const bool asks = error == Error::kAsk;
    if (redirector_ == nullptr || (!asks && error != Error::kMoved) || (asks && call->asking) ||
        call->moves >= kMostMoves) {
        return false;
    }
    Client* to = redirector_->redirect(*this, error, text);
    if (to == nullptr || !to->available()) {
        return false;
    }
    count(error);
    succeed();
    pass_on(call, to, asks);
    return true;
}

Call* Client::first_unsent() const {
    Call* call = first_;
    while (call != nullptr && call->issued) {
        call = call->next;
    }
    return call;
}

void Client::pass_on(Call* call, Client* to, bool asking) {
    Call* passed = to != nullptr ? to->make_call() : nullptr;
    if (passed == nullptr) {
        finish(call, to != nullptr ? Error::kOutOfMemory : Error::kUnavailable, {});
        return;
    }
    passed->command.swap(call->command);
    passed->slot = call->slot;
    passed->answer = call->answer;
    passed->self = call->self;
    passed->deadline = call->deadline;
    passed->asking = asking;
    passed->moves = call->moves + 1;
    unlist(call);
    call->answer = nullptr;
    recycle(call);
    to->accept(passed);
}

void Client::distrust(Error error, std::string_view line) {
    distrusted_++;
    count(error);
    complain(error, line);
    if (breaker_.failure()) {
        open_breaker(error, line);
    }
}

// Answers a call, if that was not done before, and takes it back once hiredis has. An error that is not
// `of_server` says nothing of the server.
void Client::finish(Call* call, Error error, std::string_view reply, bool of_server) {
    const Call::Answer answer = call->answer;
    if (answer != nullptr) {
        unlist(call);
        call->answer = nullptr;
        if (error != Error::kNone) {
            count(error);
            if (of_server && breaker_.failure()) {
                open_breaker(error, "too many calls in a row have failed");
            }
        }
        answer(call->self, error, reply);
    }
    if (!call->issued) {
        recycle(call);
    }
}

// Answers a call with an error that says nothing of the server.
void Client::give_up(Call* call, Error error) {
    const Call::Answer answer = call->answer;
    unlist(call);
    call->answer = nullptr;
    count(error);
    answer(call->self, error, {});
    recycle(call);
}

void Client::recycle(Call* call) {
    call->next = free_;
    free_ = call;
}

void Client::fail_waiting(Error error) {
    while (first_ != nullptr) {
        finish(first_, error, {});
    }
}

void Client::on_deadline() {
    const Milliseconds now = loop_->now();
    bool stalled = false;
    while (first_ != nullptr && first_->deadline <= now) {
        // One that was passed on, or had waited for others before it, had only what was left of its time.
        const bool whole = first_->deadline - first_->sent_at >= settings_.timeout;
        stalled = stalled || (whole && heard_at_ <= first_->sent_at);
        finish(first_, Error::kTimedOut, {}, !is_held_up(*first_));
    }
    if (stalled) {
        // Nothing was heard since a call was sent that has timed out: no other call needs to wait for as
        // long.
        open_breaker(Error::kTimedOut, way_->ready() ? "no answer" : way_->awaited());
        fail_waiting(Error::kTimedOut);
    }
    if (first_ != nullptr) {
        look_at_way();
        watch(next_look());
    }
}

void Client::watch(Milliseconds deadline) {
    const Milliseconds now = loop_->now();
    watched_ = deadline;
    deadline_->arm(deadline > now ? deadline - now : 0);
}

// Changes the phase, and tells the observer when the breaker opens or closes.
void Client::enter(Phase next) {
    const bool was_available = available();
    phase_ = next;
    if (was_available == available()) {
        return;
    }
    counts_.opened += was_available ? 1 : 0;
    if (settings_.observer != nullptr) {
        was_available ? settings_.observer->on_open() : settings_.observer->on_close();
    }
}

// Opens the breaker, if it is closed, and sees to it that it closes again.
void Client::open_breaker(Error error, std::string_view line) {
    if (!available()) {
        return;
    }
    breaker_.trip();
    enter(Phase::kFailing);
    complain(error, line);
    if (redirector_ != nullptr) {
        redirector_->on_trouble();
    }
    if (connected()) {
        retry_->arm(breaker_.next_delay(loop_->random()));
    } else if (settings_.spare && retry_->armed()) {
        retry_->arm(next_attempt_after());
    }
}

// Redis has answered a call.
void Client::succeed() {
    const Phase before = phase_;
    if (breaker_.success()) {
        enter(Phase::kServing);
        report_recovery(before == Phase::kFailing);
    }
}

// The breaker has closed. A client that is quiet has logged only that Redis was unreachable.
void Client::report_recovery(bool was_reachable) {
    rest();
    if ((!settings_.quiet || !was_reachable) && journal().may_report_recovery(settings_.node, loop_->now())) {
        loop_->log(Severity::kNotice,
                   log_line(settings_.name, where_, "answers again",
                            settings_.consequence != nullptr ? settings_.consequence->recovered : ""));
    }
}

void Client::on_retry() {
    for (Lane& lane : lanes_) {
        const bool trying = available() ? lane.connecting() : lane.trying();
        if (trying && loop_->now() >= lane.tried_at() + settings_.connect_timeout) {
            end_attempt(&lane);
        }
    }
    if (!available()) {
        // With a spare, connect_timeout was pause enough.
        if (settings_.spare || !retry_->armed()) {
            try_again();
        }
    } else if (!has_connection() && (first_ != nullptr || opening())) {
        connect(way_);
    } else {
        end_idle_spare();
        rest();
    }
}

void Client::probe(Lane* lane) {
    lane->probe(settings_.probe, [](redisAsyncContext*, void* reply, void* self) {
        auto* probed = static_cast<Lane*>(self);
        static_cast<Client*>(probed->owner())->on_probe(probed, reply);
    });
}

void Client::on_probe(Lane* lane, const void* answer) {
    const auto* reply = static_cast<const redisReply*>(answer);
    lane->end_probe();
    lane->replied(reply);
    if (reply == nullptr) {
        return;
    }
    heard(lane);
    const std::string_view text =
        reply->type == REDIS_REPLY_ERROR ? std::string_view(reply->str, reply->len) : std::string_view();
    const bool answers = redirector_ != nullptr && is_of_slot(classify(text), text);
    if (answers) {
        // Its slot is on the way to another node, which says nothing of the others.
        redirector_->on_trouble();
    }
    if (reply->type == REDIS_REPLY_ERROR && !answers) {
        complain(classify(text), text);
        if (classify(text) == Error::kReadOnly && endpoint_->wants_primary()) {
            endpoint_->suspect();
        }
        retry_->arm(breaker_.next_delay(loop_->random()));
        return;
    }
    close_breaker(lane);
}

void Client::connect(Lane* lane) {
    const Endpoint::Target target = endpoint_->target();
    if (target.address.empty() && target.trouble == nullptr) {
        // It will be known, and on_moved() called.
        retry_->arm(settings_.connect_timeout);
        return;
    }
    where_ = target.address.empty() || !settings_.address.path.empty()
                 ? configured_place(settings_.address)
                 : print_target(target.address, target.port);
    if (target.address.empty()) {
        fail_connection(lane, target.error, target.trouble);
        return;
    }
    if (target.trouble != nullptr) {
        complain(Error::kUnresolved, target.trouble, Effect::kNone);
    }
    std::string line;
    if (!lane->open(target, &line)) {
        fail_connection(lane, Error::kRefused, line);
    } else {
        retry_->arm(available() ? settings_.connect_timeout : next_attempt_after());
    }
}

// The server is elsewhere: whoever waits for the old one waits in vain.
void Client::on_moved() {
    if (has_connection()) {
        fail_waiting(Error::kClosed);
        for (Lane& lane : lanes_) {
            lane.close();
        }
    }
    if (!available() || first_ != nullptr || opening()) {
        retry_->arm(0);
    } else {
        retry_->disarm();
    }
}

void Client::on_ready(Lane* lane) {
    if (opening()) {
        enter(Phase::kServing);
    }
    heard_at_ = loop_->now();
    close_breaker(lane);
    rest();
    issue_waiting();
}

void Client::on_lost(Lane* lane, bool was_ready, Error error, std::string_view line) {
    if (!available() || (!was_ready && !other_than(lane)->ready())) {
        fail_connection(lane, error, line);
        return;
    }
    if (!was_ready || error != Error::kClosed) {
        complain(error, line, Effect::kNone);
    }
    rest();
    issue_waiting();
    // A connection that Redis closes is no failure: the next call makes a new one.
}

void Client::fail_connection(Lane* lane, Error error, std::string_view line) {
    if (opening()) {
        // Nobody has asked yet. The first call tries again, and is told what is wrong.
        enter(Phase::kServing);
        retry_->disarm();
        lane->close();
        return;
    }
    const std::string kept(line);
    endpoint_->suspect();
    lacks_rights_ = false;
    complain(error, kept, Effect::kUnreachable);
    breaker_.trip();
    enter(Phase::kUnreachable);
    fail_waiting(error);
    lane->close();
    if (!other_than(lane)->trying() || !retry_->armed()) {
        retry_->arm(breaker_.next_delay(loop_->random()));
    }
}

// Calls that another client has passed on may be due before those that came earlier.
void Client::enlist(Call* call) {
    Call* before = last_;
    while (before != nullptr && before->deadline > call->deadline) {
        before = before->previous;
    }
    call->previous = before;
    call->next = before != nullptr ? before->next : first_;
    (before != nullptr ? before->next : first_) = call;
    (call->next != nullptr ? call->next->previous : last_) = call;
    deadline_->hold(true);
}

void Client::unlist(Call* call) {
    (call->previous != nullptr ? call->previous->next : first_) = call->next;
    (call->next != nullptr ? call->next->previous : last_) = call->previous;
    deadline_->hold(first_ != nullptr);
}

// Says what is wrong, but not with every call.
void Client::complain(Error error, std::string_view line, Effect effect) {
    if (settings_.quiet && effect != Effect::kUnreachable) {
        return;
    }
    const bool requests =
        effect == Effect::kUnreachable || (effect == Effect::kFailed && !settings_.background);
    std::uint64_t left_out = 0;
    if (!journal().may_complain(settings_.node, requests ? Journal::kRequests : Journal::kOther, error,
                                loop_->now(), &left_out)) {
        return;
    }
    std::string_view consequence;
    if (effect == Effect::kNone) {
        consequence = "no request is affected";
    } else if (settings_.consequence != nullptr) {
        consequence = effect == Effect::kUnreachable ? settings_.consequence->unreachable
                                                     : settings_.consequence->failed;
    }
    loop_->log(Severity::kError,
               log_line(settings_.name, where_, describe(error, line, left_out), consequence));
}

}  // namespace rate_limit::redis
