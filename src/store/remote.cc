// Puts checks together into calls, and hands the answers back.
#include "store/remote.h"

#include <openssl/evp.h>

#include <cstring>
#include <new>

#include "store/script_text.h"
#include "store/wire.h"

namespace rate_limit {
namespace {

constexpr std::size_t kMaxKeys = 1024;  // in a call; Lua's stack takes a few thousand
constexpr std::size_t kLongestClient = 128;
constexpr std::size_t kMostDigits = 20;

// Writes the digits of a number so that they end before `end`; returns where they start.
char* print_number(std::uint64_t number, char* end) {
    do {
        *--end = static_cast<char>('0' + number % 10);
        number /= 10;
    } while (number != 0);
    return end;
}

void append_decimal(std::uint64_t number, redis::Buffer* buffer) {
    char digits[kMostDigits];
    char* start = print_number(number, digits + kMostDigits);
    buffer->append({start, static_cast<std::size_t>(digits + kMostDigits - start)});
}

void append_bulk_header(std::size_t size, redis::Buffer* buffer) {
    buffer->append("$");
    append_decimal(size, buffer);
    buffer->append("\r\n");
}

void append_bulk(std::string_view text, redis::Buffer* buffer) {
    append_bulk_header(text.size(), buffer);
    buffer->append(text);
    buffer->append("\r\n");
}

constexpr std::string_view kDigestMark = "sha256:";
constexpr std::size_t kDigestSize = kDigestMark.size() + 64;

void print_digest(std::string_view text, char* at) {
    static const char kHex[] = "0123456789abcdef";
    unsigned char digest[32] = {};
    EVP_Digest(text.data(), text.size(), digest, nullptr, EVP_sha256(), nullptr);
    std::memcpy(at, kDigestMark.data(), kDigestMark.size());
    at += kDigestMark.size();
    for (const unsigned char byte : digest) {
        *at++ = kHex[byte >> 4];
        *at++ = kHex[byte & 15];
    }
}

}  // namespace

// A question that waits for its part of a reply. It outlives the request, which may have gone.
struct Waiting {
    Question* question;
    std::size_t limits;
    bool refund;
    Waiting* next;
};

// The groups of one call.
struct Remote::Batch {
    Remote* remote = nullptr;
    std::size_t groups = 0;
    std::size_t keys = 0;
    std::size_t policies = 0;
    redis::Buffer key_texts;     // in RESP
    redis::Buffer policy_texts;  // one after the other
    redis::Buffer group_texts;
    std::uint16_t policy_ends[kMaxPolicies + 1] = {};
    Waiting* first = nullptr;
    Waiting* last = nullptr;
    Batch* next = nullptr;
};

void append_key(std::string_view prefix, std::string_view zone, Algorithm algorithm, std::string_view client,
                redis::Buffer* buffer) {
    char digest[kDigestSize];
    // A name that looks like a digest is not taken for one.
    if (client.size() > kLongestClient || client.substr(0, kDigestMark.size()) == kDigestMark) {
        print_digest(client, digest);
        client = {digest, kDigestSize};
    }
    const std::string_view name = algorithm_name(algorithm);
    append_bulk_header(prefix.size() + zone.size() + name.size() + client.size() + 4, buffer);
    buffer->append(prefix);
    buffer->append(zone);
    buffer->append(":");
    buffer->append(name);
    buffer->append(":{");
    buffer->append(client);
    buffer->append("}\r\n");
}

Remote* Remote::make(redis::Client* client, const Options& options, redis::Loop* loop) {
    auto* remote = new (std::nothrow) Remote(client, options);
    if (remote == nullptr) {
        return nullptr;
    }
    remote->flush_ = loop->make_task([](void* self) { static_cast<Remote*>(self)->flush(); }, remote);
    remote->wake_ = loop->make_task([](void* self) { static_cast<Remote*>(self)->wake(); }, remote);
    if (remote->flush_ == nullptr || remote->wake_ == nullptr) {
        remote->client_ = nullptr;
        delete remote;
        return nullptr;
    }
    return remote;
}

Remote::~Remote() {
    delete client_;  // answers all that was sent
    if (batch_ != nullptr) {
        finish(batch_, redis::Error::kClosed, {});
    }
    while (first_done_ != nullptr) {
        Waiting* waiting = first_done_;
        first_done_ = waiting->next;
        if (waiting->question != nullptr) {
            waiting->question->waiting = nullptr;
        }
        delete waiting;
    }
    while (free_waiting_ != nullptr) {
        Waiting* waiting = free_waiting_;
        free_waiting_ = waiting->next;
        delete waiting;
    }
    while (free_batches_ != nullptr) {
        Batch* batch = free_batches_;
        free_batches_ = batch->next;
        delete batch;
    }
    delete flush_;
    delete wake_;
}

Remote::Batch* Remote::make_batch() {
    Batch* batch = free_batches_;
    if (batch != nullptr) {
        free_batches_ = batch->next;
    } else {
        batch = new (std::nothrow) Batch;
    }
    if (batch != nullptr) {
        batch->remote = this;
        batch->groups = batch->keys = batch->policies = 0;
        batch->key_texts.clear();
        batch->policy_texts.clear();
        batch->group_texts.clear();
        batch->first = batch->last = nullptr;
    }
    return batch;
}

Waiting* Remote::make_waiting() {
    Waiting* waiting = free_waiting_;
    if (waiting != nullptr) {
        free_waiting_ = waiting->next;
        return waiting;
    }
    return new (std::nothrow) Waiting;
}

bool Remote::add_policy(const RemoteLimit& limit, unsigned* index) {
    char record[kLongestPolicy];
    const std::string_view text(record, encode_policy(*limit.policy, *limit.shape, record));
    const std::string_view all = batch_->policy_texts.view();
    for (*index = 0; *index < batch_->policies; ++*index) {
        const std::size_t start = batch_->policy_ends[*index];
        if (all.substr(start, batch_->policy_ends[*index + 1] - start) == text) {
            return true;
        }
    }
    batch_->policy_texts.append(text);
    batch_->policies++;
    batch_->policy_ends[batch_->policies] = static_cast<std::uint16_t>(batch_->policy_texts.size());
    return !batch_->policy_texts.failed();
}

void Remote::add_key(const RemoteLimit& limit) {
    append_key(options_.prefix, limit.zone, limit.policy->algorithm, limit.client, &batch_->key_texts);
}

bool Remote::add(const RemoteLimit* limits, std::size_t count, bool refund, Question* question) {
    if (batch_ == nullptr) {
        batch_ = make_batch();
    }
    Waiting* waiting = batch_ != nullptr ? make_waiting() : nullptr;
    if (waiting == nullptr) {
        return false;
    }
    append_number(count | (refund ? kRefund : 0U), 1, &batch_->group_texts);
    for (std::size_t i = 0; i < count; i++) {
        unsigned policy = 0;
        add_policy(limits[i], &policy);
        append_number(policy, 1, &batch_->group_texts);
        append_number(limits[i].cost, 4, &batch_->group_texts);
        add_key(limits[i]);
    }
    *waiting = {question, count, refund, nullptr};
    (batch_->last != nullptr ? batch_->last->next : batch_->first) = waiting;
    batch_->last = waiting;
    batch_->groups++;
    batch_->keys += count;
    if (question != nullptr) {
        question->waiting = waiting;
    }
    if (batch_->groups >= options_.batch || batch_->keys + kMaxLimits > kMaxKeys ||
        batch_->policies + kMaxLimits > kMaxPolicies) {
        flush();
    } else {
        flush_->arm(0);
    }
    return true;
}

bool Remote::ask(Question* question) {
    question->error = redis::Error::kNone;
    return add(question->limits, question->count, false, question);
}

void Remote::forget(Question* question) {
    if (question->waiting != nullptr) {
        question->waiting->question = nullptr;
        question->waiting = nullptr;
    }
}

void Remote::count(const RemoteLimit* limits, std::size_t count) {
    if (available()) {
        add(limits, count, false, nullptr);
    }
}

void Remote::give_back(const RemoteLimit* limits, std::size_t count) {
    if (available()) {
        add(limits, count, true, nullptr);
    }
}

void Remote::flush() {
    Batch* batch = batch_;
    if (batch == nullptr) {
        return;
    }
    batch_ = nullptr;
    if (!available()) {
        finish(batch, redis::Error::kUnavailable, {});
        return;
    }
    redis::Call* call = client_->make_call();
    const bool whole =
        !batch->key_texts.failed() && !batch->policy_texts.failed() && !batch->group_texts.failed();
    if (call == nullptr || !whole) {
        finish(batch, redis::Error::kOutOfMemory, {});
        return;
    }
    redis::Buffer& command = call->command;
    constexpr std::size_t kOtherWords = 5;  // EVALSHA, the digest, the number of keys, policies, groups
    command.append("*");
    append_decimal(batch->keys + kOtherWords, &command);
    command.append("\r\n$7\r\nEVALSHA\r\n");
    append_bulk(kScriptSha1, &command);
    char digits[kMostDigits];
    const char* start = print_number(batch->keys, digits + kMostDigits);
    append_bulk({start, static_cast<std::size_t>(digits + kMostDigits - start)}, &command);
    command.append(batch->key_texts.view());
    append_bulk(batch->policy_texts.view(), &command);
    append_bulk(batch->group_texts.view(), &command);
    client_->send(call, on_answer, batch);
}

void Remote::on_answer(void* self, redis::Error error, std::string_view reply) {
    auto* batch = static_cast<Batch*>(self);
    batch->remote->finish(batch, error, reply);
}

// Whether a reply has a decision for each limit, and nothing else.
bool Remote::is_whole(const Batch& batch, std::string_view reply) {
    Micros time = 0;
    bool whole = decode_time(&reply, &time);
    for (const Waiting* waiting = batch.first; waiting != nullptr; waiting = waiting->next) {
        for (std::size_t i = 0; i < waiting->limits && !waiting->refund && whole; i++) {
            whole = skip_decision(&reply);
        }
    }
    return whole && reply.empty();
}

void Remote::finish(Batch* batch, redis::Error error, std::string_view reply) {
    const bool answered = error == redis::Error::kNone;
    if (answered && !is_whole(*batch, reply)) {
        error = redis::Error::kShape;
    }
    Micros time = 0;
    decode_time(&reply, &time);
    Waiting* next = nullptr;
    for (Waiting* waiting = batch->first; waiting != nullptr; waiting = next) {
        next = waiting->next;
        Question* question = waiting->question;
        for (std::size_t i = 0; i < waiting->limits && !waiting->refund && error == redis::Error::kNone;
             i++) {
            const bool taken = question == nullptr ? skip_decision(&reply)
                                                   : decode_decision(&reply, *question->limits[i].policy,
                                                                     &question->limits[i].decision);
            error = taken ? error : redis::Error::kShape;
        }
        if (question == nullptr) {
            waiting->next = free_waiting_;
            free_waiting_ = waiting;
            continue;
        }
        question->error = error;
        question->time = time;
        waiting->next = nullptr;
        (last_done_ != nullptr ? last_done_->next : first_done_) = waiting;
        last_done_ = waiting;
    }
    batch->next = free_batches_;
    free_batches_ = batch;
    if (answered && error != redis::Error::kNone) {
        client_->distrust(error, "a reply is not as long as its decisions");
    }
    if (first_done_ != nullptr) {
        wake_->arm(0);
    }
}

void Remote::wake() {
    while (first_done_ != nullptr) {
        Waiting* waiting = first_done_;
        first_done_ = waiting->next;
        last_done_ = first_done_ != nullptr ? last_done_ : nullptr;
        Question* question = waiting->question;
        waiting->next = free_waiting_;
        free_waiting_ = waiting;
        if (question != nullptr) {
            question->waiting = nullptr;
            question->done(question);
        }
    }
}

}  // namespace rate_limit
