// The variables $rate_limit_*.
#include "request/variables.h"

#include "nginx/clock.h"
#include "request/headers.h"
#include "request/jwt.h"
#include "request/request.h"

namespace rate_limit {
namespace {

ngx_int_t set_text(ngx_http_variable_value_t* value, std::string_view text) {
    value->valid = 1;
    value->no_cacheable = 1;
    value->not_found = 0;
    value->len = static_cast<unsigned>(text.size());
    value->data = ngx_str(text).data;
    return NGX_OK;
}

// A number as text in the pool; without data if memory is exhausted.
ngx_str_t pool_number(ngx_pool_t* pool, uint64_t number) {
    auto* room = static_cast<u_char*>(ngx_pnalloc(pool, kLongestNumber));
    if (room == nullptr) {
        return {0, nullptr};
    }
    u_char* const end = room + kLongestNumber;
    u_char* text = print_number(number, end);
    return {static_cast<std::size_t>(end - text), text};
}

ngx_int_t set_number(ngx_http_request_t* r, ngx_http_variable_value_t* value, Micros number) {
    const ngx_str_t text = pool_number(r->pool, static_cast<uint64_t>(number));
    return text.data != nullptr ? set_text(value, view(text)) : NGX_ERROR;
}

ngx_int_t set_nothing(ngx_http_variable_value_t* value) {
    value->not_found = 1;
    return NGX_OK;
}

ngx_int_t get_status(ngx_http_request_t* r, ngx_http_variable_value_t* value, uintptr_t) {
    const RequestState* state = request_state(r);
    return state == nullptr || state->flow == Flow::kAsking || state->status == Status::kNone
               ? set_nothing(value)
               : set_text(value, status_name(state->status));
}

ngx_int_t get_zone(ngx_http_request_t* r, ngx_http_variable_value_t* value, uintptr_t) {
    const Limit* limit = binding_limit(request_state(r));
    return limit == nullptr ? set_nothing(value) : set_text(value, view(zone_of(*limit).name));
}

ngx_int_t get_store(ngx_http_request_t* r, ngx_http_variable_value_t* value, uintptr_t) {
    constexpr const char* kNames[kDeciders] = {"fallback", "memory", "redis", "cache", "fallback", "lease"};
    const RequestState* state = request_state(r);
    const Limit* limit = binding_limit(state);
    if (limit != nullptr) {
        return set_text(value, kNames[static_cast<unsigned>(limit->decided_by)]);
    }
    return state != nullptr && state->error != redis::Error::kNone ? set_text(value, kNames[0])
                                                                   : set_nothing(value);
}

ngx_int_t get_error(ngx_http_request_t* r, ngx_http_variable_value_t* value, uintptr_t) {
    const RequestState* state = request_state(r);
    return state == nullptr || state->error == redis::Error::kNone
               ? set_nothing(value)
               : set_text(value, redis::error_name(state->error));
}

enum Number : uintptr_t { kLimit, kRemaining, kReset, kRetryAfter };

ngx_int_t get_number(ngx_http_request_t* r, ngx_http_variable_value_t* value, uintptr_t which) {
    const Limit* limit = binding_limit(request_state(r));
    if (limit == nullptr) {
        return set_nothing(value);
    }
    const Decision& decision = limit->decision;
    switch (which) {
        case kLimit:
            return set_number(r, value, static_cast<Micros>(decision.limit));
        case kRemaining:
            return set_number(r, value, static_cast<Micros>(decision.remaining));
        case kReset:
            return set_number(r, value, seconds_up(limit->decided_at + decision.reset_after));
        default:
            return decision.allowed || decision.retry_after == kNever
                       ? set_nothing(value)
                       : set_number(r, value, seconds_up(decision.retry_after));
    }
}

struct Variable {
    std::string_view name;
    ngx_http_get_variable_pt get;
    uintptr_t data;
};

constexpr Variable kVariables[] = {
    {"rate_limit_status", get_status, 0},     {"rate_limit_zone", get_zone, 0},
    {"rate_limit_limit", get_number, kLimit}, {"rate_limit_remaining", get_number, kRemaining},
    {"rate_limit_reset", get_number, kReset}, {"rate_limit_retry_after", get_number, kRetryAfter},
    {"rate_limit_store", get_store, 0},       {"rate_limit_error", get_error, 0},
};

}  // namespace

bool add_variables(ngx_conf_t* cf) {
    for (const Variable& variable : kVariables) {
        ngx_str_t name = ngx_str(variable.name);
        ngx_http_variable_t* added = ngx_http_add_variable(cf, &name, NGX_HTTP_VAR_NOCACHEABLE);
        if (added == nullptr) {
            return false;
        }
        added->get_handler = variable.get;
        added->data = variable.data;
    }
    return add_claim_variables(cf);
}

}  // namespace rate_limit
