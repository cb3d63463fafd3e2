// Asks Sentinels in turn, and listens to the one that answers.
#include "redis/sentinels.h"

#include <hiredis/async.h>

#include <algorithm>
#include <charconv>
#include <new>

#include "redis/command.h"

namespace rate_limit::redis {
namespace {

constexpr Milliseconds kAskAgain = 100;  // the least time between two questions
constexpr Milliseconds kLongestPause = 1000;
constexpr Milliseconds kLookEvery = 20;  // whether a name was found
constexpr Milliseconds kSayEvery = 10'000;

std::string_view text_of(const redisReply* reply) {
    return reply->type == REDIS_REPLY_STRING ? std::string_view(reply->str, reply->len) : std::string_view();
}

// The words of a message, which are set off by blanks.
std::string_view take_word(std::string_view* text) {
    const std::string_view word = text->substr(0, text->find(' '));
    text->remove_prefix(std::min(word.size() + 1, text->size()));
    return word;
}

}  // namespace

Sentinels::Sentinels(const Settings& settings, const std::vector<Seed>& seeds, std::string_view primary,
                     Loop* loop)
    : settings_(settings), seeds_(seeds), primary_(primary), loop_(loop), connection_(settings, loop, this) {}

Sentinels* Sentinels::make(const Settings& settings, const std::vector<Seed>& seeds, std::string_view primary,
                           Loop* loop) {
    auto* sentinels = new (std::nothrow) Sentinels(settings, seeds, primary, loop);
    if (sentinels == nullptr) {
        return nullptr;
    }
    sentinels->timer_ =
        loop->make_timer([](void* self) { static_cast<Sentinels*>(self)->on_timer(); }, sentinels, false);
    if (sentinels->timer_ == nullptr) {
        delete sentinels;
        return nullptr;
    }
    // Workers spread over the Sentinels.
    sentinels->next_ = loop->random() % seeds.size();
    return sentinels;
}

Sentinels::~Sentinels() {
    connection_.close();
    if (lookup_ != nullptr) {
        lookup_->forget();
    }
    delete timer_;
}

Locator::Place Sentinels::place() {
    if (!connection_.connected() && !timer_->armed()) {
        ask();
    }
    return place_;
}

void Sentinels::doubt() {
    if (asking_ || timer_->armed()) {
        return;
    }
    const Milliseconds next = asked_at_ + kAskAgain;
    timer_->arm(next > loop_->now() ? next - loop_->now() : 0);
}

void Sentinels::on_timer() {
    if (lookup_ != nullptr) {
        if (!lookup_->done()) {
            timer_->arm(kLookEvery);
            return;
        }
        const std::vector<std::string> found = lookup_->addresses();
        lookup_->forget();
        lookup_ = nullptr;
        if (!found.empty()) {
            settle(found[0]);
            return;
        }
        fail("the primary's name has no address");
        return;
    }
    if (asking_) {
        fail("no answer");
        return;
    }
    ask();
}

void Sentinels::ask() {
    connection_.close();
    const std::vector<Seed>& seeds = seeds_.all();
    const Seed& seed = seeds[next_++ % seeds.size()];
    asked_at_ = loop_->now();
    asking_ = true;
    std::string line = "its name has no address";
    if (seed.addresses.empty() ||
        !connection_.open(
            {seed.addresses[failures_ / seeds.size() % seed.addresses.size()], seed.port, nullptr, seed.host},
            &line)) {
        fail(line);
        return;
    }
    timer_->arm(settings_.connect_timeout);
}

// The Sentinel that was asked is of no use: another is asked, at once as long as there are some that were
// not.
void Sentinels::fail(std::string_view line) {
    const std::vector<Seed>& seeds = seeds_.all();
    const Seed& seed = seeds[(next_ - 1) % seeds.size()];
    const std::string kept =
        "Sentinel " + seed.host + ":" + std::to_string(seed.port) + ": " + std::string(line);
    connection_.close();
    asking_ = false;
    failures_++;
    if (failures_ >= seeds.size()) {
        say(Severity::kError, kept);
        // Their names may have other addresses by now.
        seeds_.look_up();
    }
    const Milliseconds pause = std::min<Milliseconds>(
        kAskAgain << std::min<std::size_t>(failures_ / seeds.size(), 4), kLongestPause);
    timer_->arm(failures_ % seeds.size() != 0 ? 0 : pause - loop_->random() % (pause / 2 + 1));
}

void Sentinels::on_ready() {
    const std::string question = format_command({"SENTINEL", "GET-MASTER-ADDR-BY-NAME", primary_});
    if (!connection_.send(question, on_primary, this)) {
        fail("out of memory");
    }
}

void Sentinels::on_lost(Error, std::string_view line) {
    const std::string kept(line);
    fail(kept);
}

void Sentinels::on_primary(redisAsyncContext*, void* answer, void* self_pointer) {
    auto* self = static_cast<Sentinels*>(self_pointer);
    const auto* reply = static_cast<const redisReply*>(answer);
    if (reply == nullptr) {
        return;
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2) {
        self->fail(reply->type == REDIS_REPLY_ERROR ? std::string_view(reply->str, reply->len)
                                                    : std::string_view("it does not know the primary"));
        return;
    }
    self->timer_->disarm();
    self->asking_ = false;
    self->failures_ = 0;
    if (!self->connection_.subscribe("+switch-master", on_message, self)) {
        self->fail("out of memory");
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

// A Sentinel says where the primary is.
void Sentinels::learn(std::string_view host, std::string_view port) {
    unsigned number = 0;
    const auto parsed = std::from_chars(port.data(), port.data() + port.size(), number);
    if (host.empty() || parsed.ec != std::errc() || number == 0 || number > 65535) {
        say(Severity::kError, "a Sentinel names no address of the primary");
        return;
    }
    port_ = static_cast<std::uint16_t>(number);
    host_ = host;
    if (is_numeric(host_)) {
        settle(host_);
        return;
    }
    if (lookup_ != nullptr) {
        lookup_->forget();
    }
    lookup_ = Lookup::start(host_);
    timer_->arm(kLookEvery);
}

void Sentinels::settle(const std::string& address) {
    if (place_.address == address && place_.port == port_) {
        return;
    }
    const bool moved = !place_.address.empty();
    place_ = {address, port_, nullptr, host_};
    if (moved && !settings_.quiet) {
        loop_->log(Severity::kNotice, "redis \"" + settings_.name + "\": the primary is now " + address +
                                          ":" + std::to_string(port_));
    }
    if (owner_ != nullptr) {
        owner_->on_moved();
    }
}

void Sentinels::say(Severity severity, std::string_view line) {
    const Milliseconds now = loop_->now();
    if (settings_.quiet || (said_at_ != 0 && now < said_at_ + kSayEvery)) {
        return;
    }
    said_at_ = now;
    std::string text = "redis \"" + settings_.name + "\": " + std::string(line);
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    loop_->log(severity, text);
}

}  // namespace rate_limit::redis
