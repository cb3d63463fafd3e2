// Replaces the functions by which hiredis reads from a socket and builds replies.
#include "connection/reply_guard.h"

#include <hiredis/async.h>

#include <algorithm>
#include <cstring>

namespace rate_limit::redis {
namespace {

const redisReplyObjectFunctions* builder = nullptr;  // hiredis' own

constexpr std::size_t kLongestText = 16U
                                     << 20;  // bytes; for each packet hiredis searches the end of a line anew

constexpr int kDeepest = 6;  // nested arrays; CLUSTER SLOTS has four

constexpr char kUnexpected[] = "the server sent a reply that no command waits for";
constexpr char kTooLarge[] = "the server sent a reply that is too large";

ReplyGuard* guard_of(const redisReadTask* task) { return static_cast<ReplyGuard*>(task->privdata); }

bool is_subscribed(const redisAsyncContext* context) { return (context->c.flags & REDIS_SUBSCRIBED) != 0; }

// Whether hiredis takes a push with this first word for pub/sub. No client here uses pub/sub with RESP3.
bool names_subscription(std::string_view word) {
    word.remove_prefix(!word.empty() && (word[0] == 'p' || word[0] == 'P') ? 1 : 0);
    return word.substr(0, 7) == "message" || word.substr(0, 9) == "subscribe" ||
           word.substr(0, 11) == "unsubscribe";
}

// Whether a reply, or an array, may begin.
bool may_begin(const redisAsyncContext* context, const redisReadTask* task) {
    return context->replies.head != nullptr || is_subscribed(context) || task->type == REDIS_REPLY_PUSH ||
           task->type == REDIS_REPLY_ERROR;
}

// Whether the outermost array may have this element. `text` is null unless the element is a string.
bool may_hold(const ReplyGuard& guard, const redisReadTask* task, const std::string_view* text) {
    const redisReadTask* array = task->parent;
    if (array->type == REDIS_REPLY_PUSH) {
        return task->idx != 0 || text == nullptr || !names_subscription(*text);
    }
    constexpr long long kMessage = 3;  // elements: the kind, the channel, and the text or a number
    if (guard.context->replies.head != nullptr || !is_subscribed(guard.context) ||
        array->elements < kMessage) {
        return true;
    }
    switch (task->idx) {
        case 0:
            return text != nullptr && (*text == "message" || *text == "subscribe");
        case 1:
            return text != nullptr && *text == guard.channel;
        default:
            return true;
    }
}

const char* objection(ReplyGuard* guard, const redisReadTask* task, std::size_t size,
                      const std::string_view* text) {
    guard->taken = (task->parent == nullptr ? 0 : guard->taken) + sizeof(redisReply) + size;
    if (guard->taken > guard->most || guard->context->c.reader->ridx > kDeepest) {
        return kTooLarge;
    }
    const bool expected = task->parent == nullptr           ? may_begin(guard->context, task)
                          : task->parent->parent == nullptr ? may_hold(*guard, task, text)
                                                            : true;
    return expected ? nullptr : kUnexpected;
}

// Whether a part of a reply, with `size` bytes of content, may be built.
bool is_allowed(const redisReadTask* task, std::size_t size = 0, const std::string_view* text = nullptr) {
    ReplyGuard* guard = guard_of(task);
    const char* refused = objection(guard, task, size, text);
    guard->refused = guard->refused != nullptr ? guard->refused : refused;
    return refused == nullptr;
}

void* create_string(const redisReadTask* task, char* at, std::size_t size) {
    const std::string_view text(at, size);
    return is_allowed(task, size, task->type == REDIS_REPLY_STRING ? &text : nullptr)
               ? builder->createString(task, at, size)
               : nullptr;
}

void* create_array(const redisReadTask* task, std::size_t elements) {
    return is_allowed(task, elements * sizeof(redisReply*)) ? builder->createArray(task, elements) : nullptr;
}

void* create_integer(const redisReadTask* task, long long value) {
    return is_allowed(task) ? builder->createInteger(task, value) : nullptr;
}

void* create_double(const redisReadTask* task, double value, char* at, std::size_t size) {
    return is_allowed(task, size) ? builder->createDouble(task, value, at, size) : nullptr;
}

void* create_nil(const redisReadTask* task) { return is_allowed(task) ? builder->createNil(task) : nullptr; }

void* create_bool(const redisReadTask* task, int value) {
    return is_allowed(task) ? builder->createBool(task, value) : nullptr;
}

void free_object(void* reply) { builder->freeObject(reply); }

redisReplyObjectFunctions guarded = {create_string, create_array, create_integer, create_double,
                                     create_nil,    create_bool,  free_object};

// The functions of hiredis for a connection, and the same with a guarded read. There are two kinds: plain and
// TLS.
struct Functions {
    const redisContextFuncs* own = nullptr;
    redisContextFuncs guarded = {};
};
Functions kinds[2];

// The bytes that hiredis has read and not parsed are part of one string or line. Stops reading when they
// exceed the limit for a reply.
ssize_t read_guarded(redisContext* context, char* at, std::size_t size) {
    auto* guard = static_cast<ReplyGuard*>(context->reader->privdata);
    if (context->reader->len > std::min(guard->most, kLongestText)) {
        guard->refused = kTooLarge;
        context->err = REDIS_ERR_PROTOCOL;
        std::memcpy(context->errstr, kTooLarge, sizeof(kTooLarge));
        return -1;
    }
    const Functions& functions = context->funcs == &kinds[0].guarded ? kinds[0] : kinds[1];
    return functions.own->read(context, at, size);
}

}  // namespace

void ReplyGuard::watch(redisAsyncContext* watched) {
    context = watched;
    taken = 0;
    refused = nullptr;
    builder = watched->c.reader->fn;
    watched->c.reader->fn = &guarded;
    watched->c.reader->privdata = this;
    watch_reads();
}

void ReplyGuard::watch_reads() const {
    if (context->c.funcs->read == read_guarded) {
        return;
    }
    for (Functions& kind : kinds) {
        if (kind.own == nullptr) {
            kind.own = context->c.funcs;
            kind.guarded = *kind.own;
            kind.guarded.read = read_guarded;
        }
        if (kind.own == context->c.funcs) {
            context->c.funcs = &kind.guarded;
            return;
        }
    }
}

}  // namespace rate_limit::redis
