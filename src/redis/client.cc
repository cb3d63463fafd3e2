// Sends calls, watches their deadlines, and decides when Redis is worth asking again.
#include "redis/client.h"

#include <hiredis/async.h>

#include <algorithm>
#include <new>

namespace rate_limit::redis {
namespace {

constexpr Milliseconds kComplainEvery = 10'000;

}  // namespace

Client::Client(const Settings& settings, const std::vector<std::string>& addresses, Loop* loop)
    : settings_(settings), loop_(loop), connection_(settings, loop, this), addresses_(addresses) {}

Client* Client::make(const Settings& settings, const std::vector<std::string>& addresses, Loop* loop) {
    auto* client = new (std::nothrow) Client(settings, addresses, loop);
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
    if (lookup_ != nullptr) {
        lookup_->forget();
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
    }
    return call;
}

void Client::send(Call* call, Call::Answer answer, void* self) {
    call->answer = answer;
    call->self = self;
    call->sent_at = loop_->now();
    call->deadline = call->sent_at + settings_.timeout;
    counts_.calls++;
    enlist(call);
    if (!deadline_->armed()) {
        deadline_->arm(settings_.timeout);
    }
    if (connection_.ready()) {
        issue(call);
    } else if (!connection_.connected() && !retry_->armed()) {
        // Later, because it may fail at once.
        retry_->arm(0);
    }
}

void Client::issue(Call* call) {
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
        counts_.errors[static_cast<unsigned>(error)]++;
        if (connection_.ready() && connection_.load_script()) {
            issue(call);
            return;
        }
    }
    complain(error, text);
    finish(call, error, {});
}

void Client::distrust(Error error, std::string_view line) {
    distrusted_++;
    counts_.errors[static_cast<unsigned>(error)]++;
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
            counts_.errors[static_cast<unsigned>(error)]++;
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
        stalled = stalled || heard_at_ <= first_->sent_at;
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
        deadline_->arm(first_->deadline - now);
    }
}

// The breaker has opened: see to it that it closes again.
void Client::on_open(Error error, std::string_view line) {
    counts_.opened++;
    complain(error, line);
    if (connection_.ready() && !retry_->armed()) {
        retry_->arm(breaker_.next_delay(loop_->random()));
    }
}

// Redis has answered; `closed` if that closed the breaker.
void Client::succeed(bool closed) {
    if (closed) {
        retry_->disarm();
        if (recovered_at_ == 0 || loop_->now() >= recovered_at_ + kComplainEvery) {
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
    if (reply->type == REDIS_REPLY_ERROR) {
        const std::string_view text(reply->str, reply->len);
        complain(classify(text), text);
        retry_->arm(breaker_.next_delay(loop_->random()));
        return;
    }
    succeed(breaker_.half_close());
}

// While a name is being looked up, what was known of it before is better than nothing.
void Client::connect() {
    if (lookup_ != nullptr && lookup_->done()) {
        if (!lookup_->addresses().empty()) {
            addresses_ = lookup_->addresses();
        } else {
            complain(Error::kUnresolved, "the host has no address now");
        }
        lookup_->forget();
        lookup_ = nullptr;
    }
    std::string address;
    if (!addresses_.empty()) {
        address = addresses_[next_address_ % addresses_.size()];
    }
    std::string line;
    if (address.empty() && settings_.address.path.empty()) {
        fail_connection(Error::kUnresolved, "the host has no address");
    } else if (!connection_.open(address, &line)) {
        fail_connection(Error::kRefused, line);
    } else {
        retry_->arm(settings_.connect_timeout);
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
    const Address& address = settings_.address;
    if (lookup_ == nullptr && address.path.empty() && !is_numeric(address.host)) {
        lookup_ = Lookup::start(address.host);
    }
    greeted_ = false;
    next_address_++;
    complain(error, kept);
    if (breaker_.trip()) {
        counts_.opened++;
    }
    fail_waiting(error);
    connection_.close();
    probing_ = false;
    retry_->arm(breaker_.next_delay(loop_->random()));
}

void Client::enlist(Call* call) {
    call->previous = last_;
    call->next = nullptr;
    (last_ != nullptr ? last_->next : first_) = call;
    last_ = call;
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
