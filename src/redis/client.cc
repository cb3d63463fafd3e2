// Sends calls, reads their replies, and watches their deadlines.
#include "redis/client.h"

#include <hiredis/async.h>

#include <new>
#include <utility>

#include "connection/command.h"
#include "redis/named_endpoint.h"

namespace rate_limit::redis {

Client::Client(const Settings& settings, std::unique_ptr<Endpoint> endpoint, Loop* loop)
    : settings_(settings),
      loop_(loop),
      connector_(settings, std::move(endpoint), loop, this),
      deadline_(loop->make_timer([](void* self) { static_cast<Client*>(self)->on_deadline(); }, this, true)) {
}

Client* Client::make(const Settings& settings, const std::vector<std::string>& addresses, Loop* loop) {
    return make_with(settings, std::make_unique<NamedEndpoint>(settings.address, addresses), loop);
}

Client* Client::make_with(const Settings& settings, std::unique_ptr<Endpoint> endpoint, Loop* loop) {
    return new Client(settings, std::move(endpoint), loop);
}

Client::~Client() {
    fail_calls(Error::kClosed);
    connector_.close();
    if (settings_.observer != nullptr && !available()) {
        settings_.observer->on_close();
    }
    while (free_ != nullptr) {
        Call* call = free_;
        free_ = call->next;
        delete call;
    }
    delete deadline_;
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
        call->native = {};
        call->retried = false;
        call->by_native = false;
        call->by_script = false;
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
    counts_.calls++;
    enlist(call);
    if (TrackedConnection* connection = connector_.connection_for_call()) {
        issue(call, connection);
    } else {
        calls_wait_ = true;
    }
    const Milliseconds check = connector_.next_check(first_->deadline);
    if (!deadline_->armed() || check < watched_) {
        watch(check);
    }
}

void Client::issue(Call* call, TrackedConnection* connection) {
    look_for_native(connection);
    if (call->asking) {
        connection->send("*1\r\n$6\r\nASKING\r\n");
    }
    if (settings_.observer != nullptr) {
        call->issued_at = settings_.observer->now();
    }
    // If memory is exhausted, the call is answered at its deadline.
    call->connection = connection;
    call->by_native = native_ && !call->by_script && !call->native.empty() && !call->command.failed();
    if (call->by_native) {
        const NativeCommand command(call->native, &call->command);
        call->issued = connection->send(command.view(), on_reply, call);
    } else {
        call->issued = connection->send(call->command.view(), on_reply, call);
    }
}

// Asks a server without native commands from time to time whether it has loaded them.
void Client::look_for_native(TrackedConnection* connection) {
    constexpr Milliseconds kEvery = 5000;
    const bool due = native_asked_at_ == 0 || loop_->now() >= native_asked_at_ + kEvery;
    if (native_ || settings_.native_probe.empty() || !due || native_asked_by_ != nullptr) {
        return;
    }
    if (connection->send(settings_.native_probe, on_native_reply, this)) {
        native_asked_at_ = loop_->now();
        native_asked_by_ = connection;
    }
}

void Client::on_native_reply(redisAsyncContext*, void* reply, void* self) {
    auto* client = static_cast<Client*>(self);
    client->native_asked_by_->count_reply(reply);
    client->native_asked_by_ = nullptr;
    if (reply != nullptr) {
        client->read_native_reply(*static_cast<const redisReply*>(reply));
    } else {
        client->native_asked_at_ = 0;
    }
}

// A server without memory for new data has the commands too.
void Client::read_native_reply(const redisReply& reply) {
    native_ = reply.type == REDIS_REPLY_STRING ||
              (reply.type == REDIS_REPLY_ERROR && classify({reply.str, reply.len}) == Error::kOutOfMemory);
    if (!native_ && settings_.native_expected && !native_missed_) {
        connector_.complain(Error::kOther,
                            "native=on, but the server does not have the native module or denies it",
                            Connector::Effect::kNone);
    }
    native_missed_ = !native_;
}

// Sends a call again by the script if the native command has refused the call without a change: the module is
// gone, the user may not run the command, the command does not know the request, or the server is a replica.
// In a replica, the script also tells whether another node now serves the hash slots.
bool Client::retried_by_script(Call* call, std::string_view text) {
    const bool unknown = text.substr(0, 19) == "ERR unknown command" || text.substr(0, 6) == "NOPERM";
    const bool refused = unknown || text.substr(0, 4) == "ERR " || text.substr(0, 8) == "READONLY";
    if (!call->by_native || !refused) {
        return false;
    }
    if (unknown) {
        native_ = false;
        native_asked_at_ = loop_->now();
    }
    if (!call->connection->ready()) {
        return false;
    }
    call->by_script = true;
    issue(call, call->connection);
    return true;
}

// Issues the calls that wait for a connection.
void Client::on_answering() {
    TrackedConnection* connection = calls_wait_ ? connector_.choose() : nullptr;
    if (connection == nullptr) {
        return;
    }
    calls_wait_ = false;
    for (Call* call = first_; call != nullptr; call = call->next) {
        if (!call->issued) {
            issue(call, connection);
        }
    }
}

void Client::on_reply(redisAsyncContext* context, void* reply, void* self) {
    auto* call = static_cast<Call*>(self);
    Client* client = call->client;
    call->connection->count_reply(reply);
    if (reply != nullptr) {
        // Issues the calls that wait. This one is not among them.
        client->connector_.hear(call->connection);
        call->issued = false;
        client->read_reply(call, *static_cast<const redisReply*>(reply));
        return;
    }
    call->issued = false;
    const Error lost = Connection::loss(context);
    if (call->answer != nullptr) {
        client->connector_.complain(lost, Connection::loss_line(context));
    }
    client->finish(call, lost, {});
}

void Client::read_reply(Call* call, const redisReply& reply) {
    if (settings_.observer != nullptr) {
        settings_.observer->on_round_trip(settings_.observer->now() - call->issued_at);
    }
    if (call->answer == nullptr) {
        // The call has timed out. A late reply does not show that Redis serves calls in time.
        finish(call, Error::kTimedOut, {});
        return;
    }
    connector_.note_round_trip(connector_.heard_at() - call->sent_at);
    if (reply.type == REDIS_REPLY_STRING) {
        if (settings_.observer != nullptr) {
            settings_.observer->on_decided(call->by_native);
        }
        const std::uint64_t distrusted = distrusted_;
        finish(call, Error::kNone, {reply.str, reply.len});
        if (distrusted == distrusted_) {
            connector_.note_success();
        }
        return;
    }
    if (reply.type != REDIS_REPLY_ERROR) {
        connector_.complain(Error::kShape, "unexpected reply to the script");
        finish(call, Error::kShape, {});
        return;
    }
    read_error(call, {reply.str, reply.len});
}

void Client::read_error(Call* call, std::string_view text) {
    if (retried_by_script(call, text)) {
        return;
    }
    const Error error = classify(text);
    lacks_rights_ = error == Error::kDenied ? redis::lacks_rights(text) : lacks_rights_;
    if (error == Error::kNoScript && !call->retried) {
        call->retried = true;
        count(error);
        if (call->connection->ready() && call->connection->load_script()) {
            issue(call, call->connection);
            return;
        }
    }
    if (redirected(call, error, text)) {
        return;
    }
    connector_.complain(error, text);
    if (is_slot_error(error, text)) {
        connector_.note_success();
        finish(call, error, {}, false);
        return;
    }
    finish(call, error, {});
    if (error == Error::kReadOnly) {
        connector_.note_read_only(text);
    }
}

// Whether the server, a node of a cluster, has answered by an error about the keys of the call only.
bool Client::is_slot_error(Error error, std::string_view text) {
    const bool about_slot =
        error == Error::kMoved || error == Error::kAsk || error == Error::kTryAgain ||
        (error == Error::kClusterDown && text.find("Hash slot") != std::string_view::npos);
    if (redirector_ == nullptr || !about_slot) {
        return false;
    }
    redirector_->on_trouble();
    return true;
}

void Client::on_breaker(bool open) {
    counts_.opened += open ? 1 : 0;
    if (settings_.observer != nullptr) {
        open ? settings_.observer->on_open() : settings_.observer->on_close();
    }
    if (open && redirector_ != nullptr) {
        redirector_->on_trouble();
    }
}

void Client::on_unreachable(Error error) {
    lacks_rights_ = false;
    fail_calls(error);
}

void Client::count(Error error) {
    counts_.errors[static_cast<unsigned>(error)]++;
    if (settings_.observer != nullptr) {
        settings_.observer->on_error(error);
    }
}

// Whether the call was sent to the node that a redirection names.
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
    connector_.note_success();
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
    passed->native = call->native;
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
    connector_.complain(error, line);
    connector_.note_failure(error, line);
}

// Answers a call, unless it was answered, and recycles it once hiredis has called back. `of_server`: an error
// counts as a failure of the server.
void Client::finish(Call* call, Error error, std::string_view reply, bool of_server) {
    const Call::Answer answer = call->answer;
    if (answer != nullptr) {
        unlist(call);
        call->answer = nullptr;
        if (error != Error::kNone) {
            count(error);
            if (of_server) {
                connector_.note_failure(error, "too many calls in a row have failed");
            }
        }
        answer(call->self, error, reply);
    }
    if (!call->issued) {
        recycle(call);
    }
}

void Client::recycle(Call* call) {
    call->next = free_;
    free_ = call;
}

void Client::fail_calls(Error error) {
    while (first_ != nullptr) {
        finish(first_, error, {});
    }
}

void Client::on_deadline() {
    const Milliseconds now = loop_->now();
    bool stalled = false;
    while (first_ != nullptr && first_->deadline <= now) {
        const Call& call = *first_;
        // A call that was passed on, or was collected before it was sent, had less time.
        const bool had_timeout = call.deadline - call.sent_at >= settings_.timeout;
        stalled = stalled || (had_timeout && connector_.heard_at() <= call.sent_at);
        const bool held_up = call.issued && connector_.is_held_up(*call.connection, call.sent_at);
        finish(first_, Error::kTimedOut, {}, !held_up);
    }
    if (stalled) {
        // Redis has sent nothing for a whole timeout: the other calls do not wait as long.
        connector_.trip(Error::kTimedOut, connector_.awaited());
        fail_calls(Error::kTimedOut);
    }
    if (first_ != nullptr) {
        connector_.check_silence();
        watch(connector_.next_check(first_->deadline));
    }
}

void Client::watch(Milliseconds time) {
    const Milliseconds now = loop_->now();
    watched_ = time;
    deadline_->arm(time > now ? time - now : 0);
}

// Adds a call to the unanswered ones. A call that another client has passed on may be due before earlier
// calls.
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

}  // namespace rate_limit::redis
