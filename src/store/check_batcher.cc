// Batches checks into calls, and splits the replies.
#include "store/check_batcher.h"

#include <new>

#include "connection/command.h"
#include "protocol/script_text.h"
#include "protocol/stored_state.h"
#include "protocol/wire.h"
#include "store/check_batch.h"
#include "store/redis_statistics.h"

namespace rate_limit {
namespace {

constexpr std::size_t kMaxKeys = 1024;           // in a call; Lua's stack holds a few thousand
constexpr redis::Milliseconds kSplitFor = 1000;  // how long a node gets a call per client
constexpr redis::Milliseconds kJoinWithin = 5;   // how long settled charges wait for a check

// True if a node has decided nothing, because it does not serve all slots of the call.
bool is_elsewhere(redis::Error error, std::string_view reply) {
    switch (error) {
        case redis::Error::kNone:
            return reply.empty();
        case redis::Error::kMoved:
        case redis::Error::kAsk:
        case redis::Error::kTryAgain:
        case redis::Error::kClusterDown:
            return true;
        default:
            return false;
    }
}

// Removes the next word from text that KeyWriter::append has written, and returns it.
std::string_view take_word(std::string_view* text) {
    std::size_t size = 0;
    std::size_t at = 1;
    for (; (*text)[at] != '\r'; at++) {
        size = size * 10 + static_cast<std::size_t>((*text)[at] - '0');
    }
    const std::string_view word = text->substr(at + 2, size);
    text->remove_prefix(at + 2 + size + 2);
    return word;
}

}  // namespace

CheckBatcher::CheckBatcher(redis::Router* router, const Options& options, redis::Loop* loop)
    : router_(router),
      sharded_(router->sharded()),
      options_(options),
      keys_(options.prefix),
      loop_(loop),
      flush_(loop->make_task([](void* self) { static_cast<CheckBatcher*>(self)->flush(); }, this)),
      wake_(loop->make_task([](void* self) { static_cast<CheckBatcher*>(self)->wake(); }, this)),
      hold_(loop->make_timer([](void* self) { static_cast<CheckBatcher*>(self)->flush(); }, this, false)) {
    if (!sharded_) {
        whole_ = nodes_[0] = new Node{};
    }
}

CheckBatcher::~CheckBatcher() {
    delete router_;  // answers the calls in flight
    while (first_open_ != nullptr) {
        Batch* batch = first_open_->open;
        close(batch);
        finish(batch, redis::Error::kClosed, {});
    }
    for (Node*& list : nodes_) {
        while (list != nullptr) {
            Node* node = list;
            list = node->next;
            delete node;
        }
    }
    for (Batch*& list : open_) {
        while (list != nullptr) {
            Batch* batch = list;
            close(batch);
            finish(batch, redis::Error::kClosed, {});
        }
    }
    while (first_done_ != nullptr) {
        Waiting* waiting = first_done_;
        first_done_ = waiting->next;
        Question* question = waiting->question;
        delete waiting;
        if (question != nullptr) {
            question->waiting = nullptr;
            if (question->lost != nullptr) {
                question->lost(question);
            }
        }
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
    delete hold_;
}

CheckBatcher::Batch* CheckBatcher::make_batch() {
    Batch* batch = free_batches_;
    if (batch != nullptr) {
        free_batches_ = batch->next;
    } else {
        batch = new (std::nothrow) Batch;
    }
    if (batch != nullptr) {
        batch->batcher = this;
        batch->node = nullptr;
        batch->storable = true;
        batch->groups = batch->checks = batch->keys = 0;
        batch->client.clear();
        batch->key_texts.clear();
        batch->policies.clear();
        batch->group_texts.clear();
        batch->first = batch->last = nullptr;
    }
    return batch;
}

void CheckBatcher::recycle(Batch* batch) {
    batch->next = free_batches_;
    free_batches_ = batch;
}

Waiting* CheckBatcher::make_waiting() {
    Waiting* waiting = free_waiting_;
    if (waiting != nullptr) {
        free_waiting_ = waiting->next;
        return waiting;
    }
    return new (std::nothrow) Waiting;
}

redis::HashSlot CheckBatcher::hash_slot_of_key(const Limit& limit) {
    key_.clear();
    add_key(limit, &key_);
    std::string_view word = key_.view();
    return key_.failed() ? redis::HashSlot{0} : redis::hash_slot_of(take_word(&word));
}

bool CheckBatcher::available(redis::HashSlot slot) const {
    const redis::Client* client = router_->client_of(slot);
    return client != nullptr && client->available();
}

bool CheckBatcher::connected(redis::HashSlot slot) const {
    const redis::Client* client = router_->client_of(slot);
    return client != nullptr && client->connected();
}

// The node of a client; null if memory is exhausted. An idle node has no state worth keeping, so its record
// is reused.
CheckBatcher::Node* CheckBatcher::node_of(const redis::Client* client) {
    Node*& list = nodes_[reinterpret_cast<std::uintptr_t>(client) / alignof(std::max_align_t) % kLists];
    Node* idle = nullptr;
    for (Node* node = list; node != nullptr; node = node->next) {
        if (node->client == client) {
            return node;
        }
        if (node->open == nullptr && node->in_flight == 0 && loop_->now() >= node->split_until) {
            idle = node;
        }
    }
    if (idle == nullptr) {
        idle = new (std::nothrow) Node{client, nullptr, 0, 0, 0, list, nullptr};
        list = idle != nullptr ? idle : list;
    } else {
        idle->client = client;
    }
    return idle;
}

// The open batch for a limit, or a new one; null if memory is exhausted.
CheckBatcher::Batch* CheckBatcher::batch_for(const Limit& limit) {
    if (whole_ != nullptr) {
        return batch_of_node(whole_, 0);
    }
    const redis::HashSlot slot = hash_slot_of(limit);
    const redis::Client* client = router_->client_of(slot);
    // Until the slot map is loaded, every slot maps to one placeholder client that is not connected.
    Node* node = client != nullptr && client->connected() ? node_of(client) : nullptr;
    const bool together = node != nullptr && loop_->now() >= node->split_until;
    return together ? batch_of_node(node, slot) : batch_of_client(limit.client, slot);
}

CheckBatcher::Batch* CheckBatcher::batch_of_node(Node* node, redis::HashSlot slot) {
    if (node->open != nullptr) {
        return node->open;
    }
    Batch* batch = make_batch();
    if (batch != nullptr) {
        batch->node = node;
        batch->slot = slot;
        batch->since = loop_->now();
        node->open = batch;
        node->next_open = first_open_;
        first_open_ = node;
    }
    return batch;
}

// Batches only the groups of one client: while a slot migrates, a call whose keys are on two nodes fails, and
// must not fail the checks of other clients.
CheckBatcher::Batch* CheckBatcher::batch_of_client(std::string_view client, redis::HashSlot slot) {
    Batch*& list = open_[slot % kLists];
    for (Batch* batch = list; batch != nullptr; batch = batch->next) {
        if (batch->slot == slot && batch->client.view() == client) {
            return batch;
        }
    }
    Batch* batch = make_batch();
    if (batch != nullptr) {
        batch->slot = slot;
        batch->since = loop_->now();
        batch->client.append(client);
        batch->next = list;
        list = batch;
        filled_ |= std::uint64_t{1} << (slot % kLists);
    }
    return batch;
}

void CheckBatcher::close(Batch* batch) {
    if (batch->node != nullptr) {
        Node** link = &first_open_;
        while (*link != batch->node) {
            link = &(*link)->next_open;
        }
        *link = batch->node->next_open;
        batch->node->open = nullptr;
        return;
    }
    Batch** link = &open_[batch->slot % kLists];
    while (*link != batch) {
        link = &(*link)->next;
    }
    *link = batch->next;
}

// Adds a group. The cost of its limits is `*amount`, or that of each limit if `amount` is null.
bool CheckBatcher::add(const Limit* limits, const std::uint8_t* indices, std::size_t count, GroupKind kind,
                       const std::uint64_t* amount, Question* question) {
    Batch* batch = batch_for(limits[indices[0]]);
    Waiting* waiting = batch != nullptr ? make_waiting() : nullptr;
    if (waiting == nullptr) {
        return false;
    }
    std::uint64_t costs = amount != nullptr ? *amount : 0;
    for (std::size_t i = 0; amount == nullptr && i < count; i++) {
        costs |= limits[indices[i]].cost;
    }
    const bool large = is_large(costs);
    char* at = batch->group_texts.extend(group_size(count, kind, large));
    at = at != nullptr ? put_group(at, count, kind, large) : nullptr;
    for (std::size_t i = 0; i < count; i++) {
        const Limit& limit = limits[indices[i]];
        const unsigned policy = batch->policies.add(*limit.policy, limit.zone->layout);
        batch->storable = batch->storable && is_storable(limit.zone->layout);
        at = at != nullptr ? put_limit(at, policy, amount != nullptr ? *amount : limit.cost, large) : nullptr;
        at = at != nullptr && kind >= kUndo ? put_charge(at, {limit.cost, limit.decided_at}) : at;
        add_key(limit, &batch->key_texts);
    }
    *waiting = {question, count, kind, nullptr};
    (batch->last != nullptr ? batch->last->next : batch->first) = waiting;
    batch->last = waiting;
    batch->groups++;
    batch->keys += count;
    if (kind != kUndo && kind != kOverdraw) {
        if (batch->checks == 0 && batch->groups > 1) {
            batch->since = loop_->now();
        }
        batch->checks++;
    }
    if (question != nullptr) {
        question->waiting = waiting;
    }
    complete(batch);
    return true;
}

// Sends a batch after a group was added: at once if the batch is full, else at the end of this turn.
void CheckBatcher::complete(Batch* batch) {
    if (batch->checks >= options_.batch || batch->keys + kMaxLimits > kMaxKeys ||
        batch->policies.size() + kMaxLimits > kMaxPolicies) {
        close(batch);
        leave(batch);
    } else {
        flush_->arm(0);
    }
}

bool CheckBatcher::ask(Question* question) {
    question->error = redis::Error::kNone;
    return add(question->limits, question->indices, question->count, kDecide, nullptr, question);
}

void CheckBatcher::forget(Question* question) {
    if (question->waiting != nullptr) {
        question->waiting->question = nullptr;
        question->waiting = nullptr;
    }
}

void CheckBatcher::hand_over(Question* question, Question* copy) {
    copy->waiting = question->waiting;
    question->waiting = nullptr;
    if (copy->waiting != nullptr) {
        copy->waiting->question = copy;
    }
}

void CheckBatcher::count(const Limit& limit) {
    constexpr std::uint8_t kFirst = 0;
    if (available(hash_slot_of(limit))) {
        add(&limit, &kFirst, 1, kDecide, nullptr, nullptr);
    }
}

void CheckBatcher::undo(const Limit* limits, const std::uint8_t* indices, std::size_t count) {
    if (available(hash_slot_of(limits[indices[0]]))) {
        add(limits, indices, count, kUndoRequest, nullptr, nullptr);
    }
}

bool CheckBatcher::settle(const Limit& limit, std::uint64_t actual) {
    constexpr std::uint8_t kFirst = 0;
    const bool less = actual < limit.cost;
    const std::uint64_t amount = less ? limit.cost - actual : actual - limit.cost;
    return available(hash_slot_of(limit)) &&
           add(&limit, &kFirst, 1, less ? kUndo : kOverdraw, &amount, nullptr);
}

bool CheckBatcher::give_back(const Limit& limit, std::uint64_t amount, Micros charged_at, bool whole) {
    constexpr std::uint8_t kFirst = 0;
    Limit charged = limit;
    charged.decided_at = charged_at;
    return available(hash_slot_of(limit)) &&
           add(&charged, &kFirst, 1, whole ? kUndoRequest : kUndo, &amount, nullptr);
}

// Whether a node's open batch keeps waiting. A batch of settled charges waits for a check, which saves a
// call. Other batches wait for the next reply. A late reply may be delayed by a lost packet, so with a spare
// connection the batch is sent after Client::patience() anyway.
bool CheckBatcher::holds(const Node& node) {
    if (node.open->checks == 0) {
        return holds_until(node.open->since + kJoinWithin);
    }
    if (!node.must_wait()) {
        return false;
    }
    const redis::Client* client = router_->client_of(node.open->slot);
    if (client == nullptr || !client->settings().spare) {
        return true;
    }
    return holds_until(node.open->since + client->patience());
}

bool CheckBatcher::holds_until(redis::Milliseconds until) {
    if (until <= loop_->now()) {
        return false;
    }
    if (!hold_->armed()) {
        hold_->arm(until - loop_->now());
    }
    return true;
}

// A process that shuts down first sends settled charges.
void CheckBatcher::flush() {
    bool settles = false;
    for (Node** link = &first_open_; *link != nullptr;) {
        Node* node = *link;
        if (holds(*node)) {
            settles = settles || node->open->checks == 0;
            link = &node->next_open;
            continue;
        }
        *link = node->next_open;
        Batch* batch = node->open;
        node->open = nullptr;
        leave(batch);
    }
    if (settles != keeps_process_) {
        keeps_process_ = settles;
        hold_->hold(settles);
    }
    while (filled_ != 0) {
        Batch*& list = open_[__builtin_ctzll(filled_)];
        filled_ &= filled_ - 1;
        while (list != nullptr) {
            Batch* batch = list;
            list = batch->next;
            send(batch);
        }
    }
}

// Sends a batch that has just been closed. If its first slot has moved to another node while the batch
// waited, other slots may have moved as well: each group is sent on its own.
void CheckBatcher::leave(Batch* batch) {
    const bool follows = sharded_ && batch->node != nullptr;
    if (follows && router_->client_of(batch->slot) != batch->node->client) {
        send_split(batch);
    } else {
        send(batch);
    }
}

void CheckBatcher::send(Batch* batch) {
    if (batch->key_texts.failed() || batch->policies.failed() || batch->group_texts.failed()) {
        finish(batch, redis::Error::kOutOfMemory, {});
        return;
    }
    redis::Client* client = router_->client_of(batch->slot);
    if (client == nullptr || !client->available()) {
        finish(batch, redis::Error::kUnavailable, {});
        return;
    }
    redis::Call* call = client->make_call();
    if (call == nullptr) {
        finish(batch, redis::Error::kOutOfMemory, {});
        return;
    }
    redis::Buffer& command = call->command;
    const bool undeclared = sharded_ && batch->node != nullptr;
    constexpr std::size_t kArguments = 2;  // policies, groups
    redis::append_evalsha(kScriptSha1, undeclared ? 0 : batch->keys,
                          undeclared ? batch->keys + kArguments : kArguments, &command);
    command.append(undeclared ? std::string_view() : batch->key_texts.view());
    redis::append_bulk(batch->policies.text(), &command);
    redis::append_bulk(batch->group_texts.view(), &command);
    command.append(undeclared ? batch->key_texts.view() : std::string_view());
    call->slot = batch->slot;
    call->native = batch->storable ? kNativeCheck : std::string_view();
    if (batch->node != nullptr) {
        batch->node->in_flight += batch->groups;
        batch->node->checks_in_flight += batch->checks;
    }
    if (options_.counter != nullptr) {
        options_.counter->on_batch(batch->groups);
    }
    if (options_.on_send != nullptr) {
        options_.on_send(batch->groups, batch->keys);
    }
    client->send(call, on_answer, batch, batch->since);
}

void CheckBatcher::on_answer(void* self, redis::Error error, std::string_view reply) {
    auto* batch = static_cast<Batch*>(self);
    CheckBatcher* batcher = batch->batcher;
    Node* node = batch->node;
    if (batcher->options_.on_reply != nullptr) {
        batcher->options_.on_reply(batch->groups, error);
    }
    if (node != nullptr) {
        node->in_flight -= batch->groups;
        node->checks_in_flight -= batch->checks;
        if (node->open != nullptr) {
            batcher->flush_->arm(0);
        }
    }
    if (batcher->sharded_ && node != nullptr && is_elsewhere(error, reply)) {
        node->split_until = batcher->loop_->now() + kSplitFor;
        batcher->send_split(batch);
        return;
    }
    batcher->finish(batch, error, reply);
}

// Sends each group of a batch in a call of its own, with the deadline of the batch. The node does not serve
// all slots of the batch, and nothing has been charged. Redis redirects each of these calls if necessary.
void CheckBatcher::send_split(Batch* batch) {
    if (batch->key_texts.failed() || batch->group_texts.failed()) {
        finish(batch, redis::Error::kOutOfMemory, {});
        return;
    }
    std::string_view keys = batch->key_texts.view();
    std::string_view groups = batch->group_texts.view();
    while (batch->first != nullptr) {
        Waiting* waiting = batch->first;
        Batch* one = make_batch();
        if (one == nullptr) {
            finish(batch, redis::Error::kOutOfMemory, {});
            return;
        }
        batch->first = waiting->next;
        waiting->next = nullptr;
        one->first = one->last = waiting;
        one->since = batch->since;
        one->groups = 1;
        one->keys = waiting->limits;
        one->policies.assign(batch->policies.text());
        one->storable = batch->storable;
        const bool large = !groups.empty() && (static_cast<unsigned char>(groups.front()) & kLargeCosts) != 0;
        const std::size_t size = group_size(waiting->limits, waiting->kind, large);
        one->group_texts.append(groups.substr(0, size));
        groups.remove_prefix(size);
        const std::string_view before = keys;
        one->slot = redis::hash_slot_of(take_word(&keys));
        for (std::size_t i = 1; i < waiting->limits; i++) {
            take_word(&keys);
        }
        one->key_texts.append(before.substr(0, before.size() - keys.size()));
        send(one);
    }
    recycle(batch);
}

// True if a reply has the time, a decision for each limit of a group with kDecide, and nothing else.
bool CheckBatcher::is_whole(const Batch& batch, std::string_view reply) {
    Micros time = 0;
    bool whole = decode_time(&reply, &time);
    for (const Waiting* waiting = batch.first; waiting != nullptr; waiting = waiting->next) {
        for (std::size_t i = 0; i < waiting->limits && waiting->kind == kDecide && whole; i++) {
            whole = skip_decision(&reply);
        }
    }
    return whole && reply.empty();
}

void CheckBatcher::finish(Batch* batch, redis::Error error, std::string_view reply) {
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
        for (std::size_t i = 0;
             i < waiting->limits && waiting->kind == kDecide && error == redis::Error::kNone; i++) {
            const bool taken = question == nullptr ? skip_decision(&reply)
                                                   : decode_decision(&reply, *(*question)[i].policy,
                                                                     &(*question)[i].decision);
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
    if (answered && error != redis::Error::kNone) {
        redis::Client* client = router_->client_of(batch->slot);
        if (client != nullptr) {
            client->distrust(error, "a reply is not as long as its decisions");
        }
    }
    recycle(batch);
    if (first_done_ != nullptr) {
        wake_->arm(0);
    }
}

void CheckBatcher::wake() {
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
