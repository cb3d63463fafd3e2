// Asks Sentinels in turn, and subscribes at the first that answers.
#include "cluster/sentinels.h"

#include <hiredis/async.h>

#include <algorithm>
#include <charconv>

#include "connection/command.h"

namespace rate_limit::redis {
namespace {

constexpr Milliseconds kAskAgain = 100;  // least interval between queries
constexpr Milliseconds kLongestPause = 1000;
constexpr Milliseconds kLookEvery = 20;  // interval for polling a lookup

std::string_view text_of(const redisReply* reply) {
    return reply->type == REDIS_REPLY_STRING ? std::string_view(reply->str, reply->len) : std::string_view();
}

// Takes the first word of a text of words separated by spaces.
std::string_view take_word(std::string_view* text) {
    const std::string_view word = text->substr(0, text->find(' '));
    text->remove_prefix(std::min(word.size() + 1, text->size()));
    return word;
}

}  // namespace

Sentinels::Sentinels(const Settings& settings, const std::vector<Seed>& seeds, std::string_view primary,
                     Loop* loop)
    : settings_(settings),
      seeds_(seeds),
      primary_(primary),
      loop_(loop),
      connection_(settings, loop, this),
      timer_(loop->make_timer([](void* self) { static_cast<Sentinels*>(self)->on_timer(); }, this, false)),
      next_(loop->random() % seeds.size()) {}

Sentinels::~Sentinels() {
    connection_.close();
    forget_lookup();
    delete timer_;
}

Endpoint::Target Sentinels::target() {
    if (!connection_.connected() && !timer_->armed()) {
        ask();
    }
    return target_;
}

void Sentinels::suspect() {
    if (asking_ || timer_->armed()) {
        return;
    }
    const Milliseconds next = asked_at_ + kAskAgain;
    timer_->arm(next > loop_->now() ? next - loop_->now() : 0);
}

void Sentinels::on_timer() {
    const bool follows = lookup_ != nullptr || pending_;
    if (pending_) {
        follow();
    } else if (lookup_ != nullptr) {
        end_lookup();
    } else if (asking_) {
        fail(Error::kTimedOut, connection_.ready() ? "no answer" : connection_.awaited());
        return;
    }
    if (!follows || (!connection_.connected() && !timer_->armed())) {
        ask();
    }
}

// Uses the result of a lookup, if it is done. A Sentinel may have named another host since the lookup began;
// that lookup is then abandoned after kLongestPause.
void Sentinels::end_lookup() {
    const bool other = looked_up_ != host_;
    if (!lookup_->done() && (!other || loop_->now() < followed_at_ + kLongestPause)) {
        timer_->arm(kLookEvery);
        return;
    }
    const std::vector<std::string> found =
        lookup_->done() ? lookup_->addresses() : std::vector<std::string>();
    forget_lookup();
    if (other) {
        follow();
    } else if (!found.empty()) {
        settle(found[0]);
    } else {
        fail(Error::kUnresolved, "the primary's name \"" + host_ + "\" has no address");
    }
}

void Sentinels::forget_lookup() {
    if (lookup_ != nullptr) {
        lookup_->forget();
        lookup_ = nullptr;
    }
}

void Sentinels::ask() {
    connection_.close();
    const std::vector<Seed>& seeds = seeds_.all();
    const Seed& seed = seeds[next_++ % seeds.size()];
    asked_at_ = loop_->now();
    asking_ = true;
    if (seed.addresses.empty()) {
        where_ = "Sentinel " + print_target(seed.host, seed.port);
        fail(Error::kUnresolved, "the host has no address");
        return;
    }
    const std::string& address = seed.addresses[failures_ / seeds.size() % seed.addresses.size()];
    where_ = "Sentinel " + print_target(address, seed.port);
    std::string line;
    if (!connection_.open({address, seed.port, nullptr, seed.host}, &line)) {
        fail(Error::kRefused, line);
        return;
    }
    timer_->arm(settings_.connect_timeout);
}

// The Sentinel has failed: asks the next one, without a pause until all were asked. A Sentinel that answers
// and then fails may do so each time, so kAskAgain applies after it.
void Sentinels::fail(Error error, std::string_view line) {
    const std::vector<Seed>& seeds = seeds_.all();
    const std::string kept(line);
    const bool answered = !asking_ && failures_ == 0;
    connection_.close();
    asking_ = false;
    failures_++;
    if (failures_ >= seeds.size()) {
        complain(error, kept);
        // The addresses of the Sentinels may have changed.
        seeds_.look_up();
    }
    const Milliseconds pause = std::min<Milliseconds>(
        kAskAgain << std::min<std::size_t>(failures_ / seeds.size(), 4), kLongestPause);
    if (failures_ % seeds.size() == 0) {
        timer_->arm(pause - loop_->random() % (pause / 2 + 1));
        return;
    }
    const Milliseconds next = answered ? asked_at_ + kAskAgain : 0;
    timer_->arm(next > loop_->now() ? next - loop_->now() : 0);
}

void Sentinels::on_ready() {
    const std::string question = format_command({"SENTINEL", "GET-MASTER-ADDR-BY-NAME", primary_});
    if (!connection_.send(question, on_primary, this)) {
        fail(Error::kOther, "out of memory");
    }
}

void Sentinels::on_lost(Error error, std::string_view line) {
    const std::string kept(line);
    fail(error, kept);
}

void Sentinels::on_primary(redisAsyncContext*, void* answer, void* self_pointer) {
    auto* self = static_cast<Sentinels*>(self_pointer);
    const auto* reply = static_cast<const redisReply*>(answer);
    if (reply == nullptr) {
        return;
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2) {
        const bool is_error = reply->type == REDIS_REPLY_ERROR;
        const std::string_view text = is_error ? std::string_view(reply->str, reply->len)
                                               : std::string_view("the Sentinel does not know the primary");
        self->fail(is_error ? classify(text) : Error::kOther, text);
        return;
    }
    self->timer_->disarm();
    self->asking_ = false;
    self->failures_ = 0;
    if (!self->connection_.subscribe("+switch-master", on_message, self)) {
        self->fail(Error::kOther, "out of memory");
        return;
    }
    self->learn(text_of(reply->element[0]), text_of(reply->element[1]));
}

void Sentinels::on_message(redisAsyncContext*, void* answer, void* self_pointer) {
    auto* self = static_cast<Sentinels*>(self_pointer);
    const auto* reply = static_cast<const redisReply*>(answer);
    if (reply == nullptr || reply->type != REDIS_REPLY_ARRAY || reply->elements != 3) {
        return;
    }
    std::string_view message = text_of(reply->element[2]);
    if (text_of(reply->element[0]) != "message" || take_word(&message) != self->primary_) {
        return;
    }
    take_word(&message);
    take_word(&message);
    const std::string_view host = take_word(&message);
    self->learn(host, message);
}

// A Sentinel has named the primary.
void Sentinels::learn(std::string_view host, std::string_view port) {
    unsigned number = 0;
    const auto parsed = std::from_chars(port.data(), port.data() + port.size(), number);
    if (!is_host(host) || parsed.ec != std::errc() || number == 0 || number > 65535) {
        complain(Error::kShape, "the Sentinel returned no address of the primary");
        return;
    }
    port_ = static_cast<std::uint16_t>(number);
    host_ = host;
    if (lookup_ != nullptr && !is_numeric(host_)) {
        return;
    }
    const Milliseconds now = loop_->now();
    if (followed_at_ != 0 && now < followed_at_ + kAskAgain) {
        pending_ = true;
        timer_->arm(followed_at_ + kAskAgain - now);
        return;
    }
    follow();
}

// Uses the primary that a Sentinel has named last.
void Sentinels::follow() {
    pending_ = false;
    followed_at_ = loop_->now();
    forget_lookup();
    if (is_numeric(host_)) {
        settle(host_);
        return;
    }
    looked_up_ = host_;
    lookup_ = NameLookup::start(host_);
    timer_->arm(kLookEvery);
}

void Sentinels::settle(const std::string& address) {
    if (target_.address == address && target_.port == port_) {
        return;
    }
    const bool moved = !target_.address.empty();
    target_ = {address, port_, nullptr, host_};
    std::string line = log_line(settings_.name, where_, "the primary is now " + print_target(address, port_),
                                "requests are decided there");
    if (moved && !settings_.quiet && moves_.admit(loop_->now(), &line)) {
        loop_->log(Severity::kNotice, line);
    }
    if (owner_ != nullptr) {
        owner_->on_moved();
    }
}

// While a primary is known, requests do not depend on the Sentinels.
void Sentinels::complain(Error error, std::string_view line) {
    Journal& journal = settings_.journal != nullptr ? *settings_.journal : own_journal_;
    std::string consequence;
    if (!target_.address.empty()) {
        consequence = "requests are still decided at " + print_target(target_.address, target_.port);
    } else if (settings_.consequence != nullptr) {
        consequence = settings_.consequence->unreachable;
    }
    journal.complain({settings_.name, where_, "Sentinels", Journal::kRequests, error, line, consequence},
                     loop_);
}

}  // namespace rate_limit::redis
