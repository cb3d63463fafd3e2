// Stands between hiredis' parser and the functions with which the parser builds a reply.
#include "redis/reply_guard.h"

#include <hiredis/async.h>

namespace rate_limit::redis {
namespace {

const redisReplyObjectFunctions* builder = nullptr;  // hiredis' own

ReplyGuard* guard_of(const redisReadTask* task) { return static_cast<ReplyGuard*>(task->privdata); }

bool is_subscribed(const redisAsyncContext* context) { return (context->c.flags & REDIS_SUBSCRIBED) != 0; }

// Whether hiredis takes the first word of a push for pub/sub, which nobody here asks for by RESP3.
bool names_subscription(std::string_view word) {
    word.remove_prefix(!word.empty() && (word[0] == 'p' || word[0] == 'P') ? 1 : 0);
    return word.substr(0, 7) == "message" || word.substr(0, 9) == "subscribe" ||
           word.substr(0, 11) == "unsubscribe";
}

// A whole reply, or the head of an array.
bool may_begin(const redisAsyncContext* context, const redisReadTask* task) {
    return context->replies.head != nullptr || is_subscribed(context) || task->type == REDIS_REPLY_PUSH ||
           task->type == REDIS_REPLY_ERROR;
}

// An element of the outermost array. `text` is null unless the element is a string.
bool may_hold(const ReplyGuard& guard, const redisReadTask* task, const std::string_view* text) {
    const redisReadTask* whole = task->parent;
    if (whole->type == REDIS_REPLY_PUSH) {
        return task->idx != 0 || text == nullptr || !names_subscription(*text);
    }
    constexpr long long kMessage = 3;  // elements: what happened, the channel, and the text or a number
    if (guard.context->replies.head != nullptr || !is_subscribed(guard.context) ||
        whole->elements < kMessage) {
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

bool is_allowed(const redisReadTask* task, const std::string_view* text = nullptr) {
    ReplyGuard* guard = guard_of(task);
    const bool allowed = task->parent == nullptr           ? may_begin(guard->context, task)
                         : task->parent->parent == nullptr ? may_hold(*guard, task, text)
                                                           : true;
    guard->refused = guard->refused || !allowed;
    return allowed;
}

void* create_string(const redisReadTask* task, char* at, std::size_t size) {
    const std::string_view text(at, size);
    return is_allowed(task, task->type == REDIS_REPLY_STRING ? &text : nullptr)
               ? builder->createString(task, at, size)
               : nullptr;
}

void* create_array(const redisReadTask* task, std::size_t elements) {
    return is_allowed(task) ? builder->createArray(task, elements) : nullptr;
}

void* create_integer(const redisReadTask* task, long long value) {
    return is_allowed(task) ? builder->createInteger(task, value) : nullptr;
}

void* create_double(const redisReadTask* task, double value, char* at, std::size_t size) {
    return is_allowed(task) ? builder->createDouble(task, value, at, size) : nullptr;
}

void* create_nil(const redisReadTask* task) { return is_allowed(task) ? builder->createNil(task) : nullptr; }

void* create_bool(const redisReadTask* task, int value) {
    return is_allowed(task) ? builder->createBool(task, value) : nullptr;
}

void free_object(void* reply) { builder->freeObject(reply); }

redisReplyObjectFunctions guarded = {create_string, create_array, create_integer, create_double,
                                     create_nil,    create_bool,  free_object};

}  // namespace

void ReplyGuard::watch(redisAsyncContext* watched) {
    context = watched;
    refused = false;
    builder = watched->c.reader->fn;
    watched->c.reader->fn = &guarded;
    watched->c.reader->privdata = this;
}

}  // namespace rate_limit::redis
