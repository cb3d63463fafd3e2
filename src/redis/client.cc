// Sends calls, watches their deadlines, and decides when Redis is worth asking again.
#include "redis/client.h"

#include <hiredis/async.h>

#include <algorithm>
#include <new>
#include <utility>

#include "redis/host.h"

namespace rate_limit::redis {
namespace {

constexpr Milliseconds kComplainEvery = 10'000;

// Whether an error tells of the call's keys alone, and nothing of the server.
bool is_of_slot(Error error, std::string_view text) {
    return error == Error::kMoved || error == Error::kAsk || error == Error::kTryAgain ||
           (error == Error::kClusterDown && text.find("Hash slot") != std::string_view::npos);
}

}  // namespace

Client::Client(const Settings& settings, std::unique_ptr<Locator> locator, Loop* loop)
    : settings_(settings), loop_(loop), connection_(settings, loop, this), locator_(std::move(locator)) {
    locator_->set_owner(this);
}

Client* Client::make(const Settings& settings, const std::vector<std::string>& addresses, Loop* loop) {
    auto* host = new (std::nothrow) Host(settings.address, addresses);
    return host != nullptr ? make_with(settings, std::unique_ptr<Locator>(host), loop) : nullptr;
}

Client* Client::make_with(const Settings& settings, std::unique_ptr<Locator> locator, Loop* loop) {
    auto* client = new (std::nothrow) Client(settings, std::move(locator), loop);
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
    connection_.close();
    if (settings_.watcher != nullptr && breaker_.open()) {
        settings_.watcher->on_close();
    }
    while (free_ != nullptr) {
        Call* call = free_;
        free_ = call->next;
        delete call;
    }
    delete deadline_;
    delete retry_;
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
    counts_.calls++;
    enlist(call);
    if (!deadline_->armed() || call->deadline < watched_) {
        watch(call->deadline);
    }
    if (connection_.ready()) {
        issue(call);
    } else if (!connection_.connected() && !retry_->armed()) {
        // Later, because it may fail at once.
        retry_->arm(0);
    }
}

void Client::issue(Call* call) {
    if (call->asking) {
        connection_.send("*1\r\n$6\r\nASKING\r\n", nullptr, nullptr);
    }
    if (settings_.watcher != nullptr) {
        call->issued_at = settings_.watcher->now();
    }
    // If there is no memory, the deadline answers it.
    call->issued = connection_.send(call->command.view(), on_reply, call);
}

void Client::on_reply(redisAsyncContext* context, void* reply, void* self) {
    auto* call = static_cast<Call*>(self);
    Client* client = call->client;
    call->issued = false;
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
    heard_at_ = loop_->now();
    if (settings_.watcher != nullptr) {
        settings_.watcher->on_round_trip(settings_.watcher->now() - call->issued_at);
    }
    if (call->answer == nullptr) {
        // Too late to be of use to anybody, and so no sign that Redis is worth asking.
        finish(call, Error::kTimedOut, {});
        return;
    }
    if (reply->type == REDIS_REPLY_STRING) {
        const std::uint64_t distrusted = distrusted_;
        finish(call, Error::kNone, {reply->str, reply->len});
        if (distrusted == distrusted_) {
            succeed(breaker_.success());
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
    if (error == Error::kNoScript && !call->repeated) {
        call->repeated = true;
        count(error);
        if (connection_.ready() && connection_.load_script()) {
            issue(call);
            return;
        }
    }
    if (redirected(call, error, text)) {
        return;
    }
    complain(error, text);
    if (redirector_ != nullptr && is_of_slot(error, text)) {
        redirector_->on_trouble();
        succeed(breaker_.success());
        give_up(call, error);
        return;
    }
    finish(call, error, {});
    if (error == Error::kReadOnly && locator_->wants_primary()) {
        // It was the primary, and is no longer. Not from here: hiredis is at work.
        locator_->doubt();
        if (breaker_.trip()) {
            on_open(error, text);
        }
    }
}

void Client::count(Error error) {
    counts_.errors[static_cast<unsigned>(error)]++;
    if (settings_.watcher != nullptr) {
        settings_.watcher->on_error(error);
    }
}

void Client::count_opened() {
    counts_.opened++;
    if (settings_.watcher != nullptr) {
        settings_.watcher->on_open();
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
    succeed(breaker_.success());
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
        on_open(error, line);
    }
}

// Answers a call, if that was not done before, and takes it back once hiredis has.
void Client::finish(Call* call, Error error, std::string_view reply) {
    const Call::Answer answer = call->answer;
    if (answer != nullptr) {
        unlist(call);
        call->answer = nullptr;
        if (error != Error::kNone) {
            count(error);
            if (breaker_.failure()) {
                on_open(error, "too many calls in a row have failed");
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
        finish(first_, Error::kTimedOut, {});
    }
    if (stalled) {
        // Nothing was heard since a call was sent that has timed out: no other call needs to wait for as
        // long.
        if (breaker_.trip()) {
            on_open(Error::kTimedOut, "no answer");
        }
        fail_waiting(Error::kTimedOut);
    }
    if (first_ != nullptr) {
        watch(first_->deadline);
    }
}

void Client::watch(Milliseconds deadline) {
    const Milliseconds now = loop_->now();
    watched_ = deadline;
    deadline_->arm(deadline > now ? deadline - now : 0);
}

// The breaker has opened: see to it that it closes again.
void Client::on_open(Error error, std::string_view line) {
    count_opened();
    complain(error, line);
    if (redirector_ != nullptr) {
        redirector_->on_trouble();
    }
    if (connection_.ready() && !retry_->armed()) {
        retry_->arm(breaker_.next_delay(loop_->random()));
    }
}

// Redis has answered; `closed` if that closed the breaker.
void Client::succeed(bool closed) {
    if (closed) {
        if (settings_.watcher != nullptr) {
            settings_.watcher->on_close();
        }
        retry_->disarm();
        if (!settings_.quiet && (recovered_at_ == 0 || loop_->now() >= recovered_at_ + kComplainEvery)) {
            recovered_at_ = loop_->now();
            loop_->log(Severity::kNotice, "redis \"" + settings_.name + "\" answers again");
        }
    }
}

void Client::on_retry() {
    if (connection_.connected() && !connection_.ready()) {
        fail_connection(Error::kTimedOut, "no connection within connect_timeout");
        return;
    }
    if (!connection_.connected()) {
        if (breaker_.open() || first_ != nullptr) {
            connect();
        }
        return;
    }
    if (!breaker_.open()) {
        return;
    }
    if (probing_) {
        fail_connection(Error::kTimedOut, "the probe was not answered");
        return;
    }
    probe();
}

void Client::probe() {
    probing_ = connection_.send(
        settings_.probe,
        [](redisAsyncContext*, void* reply, void* self) { static_cast<Client*>(self)->on_probe(reply); },
        this);
    retry_->arm(settings_.connect_timeout);
}

void Client::on_probe(const void* answer) {
    const auto* reply = static_cast<const redisReply*>(answer);
    probing_ = false;
    if (reply == nullptr) {
        return;
    }
    heard_at_ = loop_->now();
    const std::string_view text =
        reply->type == REDIS_REPLY_ERROR ? std::string_view(reply->str, reply->len) : std::string_view();
    const bool answers = redirector_ != nullptr && is_of_slot(classify(text), text);
    if (answers) {
        // Its slot is on the way to another node, which says nothing of the others.
        redirector_->on_trouble();
    }
    if (reply->type == REDIS_REPLY_ERROR && !answers) {
        complain(classify(text), text);
        if (classify(text) == Error::kReadOnly && locator_->wants_primary()) {
            locator_->doubt();
        }
        retry_->arm(breaker_.next_delay(loop_->random()));
        return;
    }
    succeed(breaker_.half_close());
}

void Client::connect() {
    const Locator::Place place = locator_->place();
    if (place.address.empty() && place.trouble == nullptr) {
        // It will be known, and on_moved() called.
        retry_->arm(settings_.connect_timeout);
        return;
    }
    if (place.address.empty()) {
        fail_connection(place.error, place.trouble);
        return;
    }
    if (place.trouble != nullptr) {
        complain(Error::kUnresolved, place.trouble);
    }
    std::string line;
    if (!connection_.open(place, &line)) {
        fail_connection(Error::kRefused, line);
    } else {
        retry_->arm(settings_.connect_timeout);
    }
}

// The server is elsewhere: whoever waits for the old one waits in vain.
void Client::on_moved() {
    if (connection_.connected()) {
        greeted_ = false;
        probing_ = false;
        fail_waiting(Error::kClosed);
        connection_.close();
    }
    if (breaker_.open() || first_ != nullptr) {
        retry_->arm(0);
    } else {
        retry_->disarm();
    }
}

void Client::on_ready() {
    retry_->disarm();
    greeted_ = true;
    probing_ = false;
    heard_at_ = loop_->now();
    succeed(breaker_.half_close());
    for (Call* call = first_; call != nullptr; call = call->next) {
        issue(call);
    }
}

void Client::on_lost(Error error, std::string_view line) {
    const bool idle = greeted_ && !breaker_.open();
    greeted_ = false;
    probing_ = false;
    if (!idle) {
        fail_connection(error, line);
        return;
    }
    if (error != Error::kClosed) {
        complain(error, line);
    }
    retry_->disarm();
    // A connection that Redis closes is no failure: the next call makes a new one.
}

void Client::fail_connection(Error error, std::string_view line) {
    const std::string kept(line);
    locator_->doubt();
    greeted_ = false;
    complain(error, kept);
    if (breaker_.trip()) {
        count_opened();
    }
    fail_waiting(error);
    connection_.close();
    probing_ = false;
    retry_->arm(breaker_.next_delay(loop_->random()));
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
void Client::complain(Error error, std::string_view line) {
    const auto index = static_cast<unsigned>(error);
    const Milliseconds now = loop_->now();
    if (settings_.quiet) {
        return;
    }
    if (complained_at_[index] != 0 && now < complained_at_[index] + kComplainEvery) {
        unsaid_[index]++;
        return;
    }
    std::string text = "redis \"" + settings_.name + "\": " + error_name(error) + ": " + std::string(line);
    if (unsaid_[index] != 0) {
        text += " (and " + std::to_string(unsaid_[index]) + " times more before)";
    }
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    complained_at_[index] = now;
    unsaid_[index] = 0;
    loop_->log(Severity::kError, text);
}

}  // namespace rate_limit::redis
