// The header filter: X-RateLimit-*, RateLimit, RateLimit-Policy and Retry-After.
#include "nginx/answer.h"
#include "nginx/clock.h"

namespace rate_limit {
namespace {

ngx_http_output_header_filter_pt next_filter;

// Sets a response header; whoever set it before gives way.
bool set_header(ngx_http_request_t* r, std::string_view name, ngx_str_t value) {
    for (ngx_list_part_t* part = &r->headers_out.headers.part; part != nullptr; part = part->next) {
        auto* headers = static_cast<ngx_table_elt_t*>(part->elts);
        for (ngx_uint_t i = 0; i < part->nelts; i++) {
            if (same_letters(view(headers[i].key), name)) {
                headers[i].hash = 0;
            }
        }
    }
    auto* header = static_cast<ngx_table_elt_t*>(ngx_list_push(&r->headers_out.headers));
    if (header == nullptr) {
        return false;
    }
    *header = {};
    header->hash = 1;
    header->key = ngx_str(name);
    header->value = value;
    return true;
}

bool set_number(ngx_http_request_t* r, std::string_view name, Micros number) {
    const ngx_str_t text = pool_number(r->pool, number);
    return text.data != nullptr && set_header(r, name, text);
}

bool set_legacy(ngx_http_request_t* r, const RequestState& state, const Decision& decision) {
    return set_number(r, "X-RateLimit-Limit", decision.limit) &&
           set_number(r, "X-RateLimit-Remaining", decision.remaining) &&
           set_number(r, "X-RateLimit-Reset", seconds_up(state.decided_at + decision.reset_after));
}

u_char* print_quoted_name(u_char* at, u_char* end, const DecidedLimit& limit, std::uint32_t rate) {
    at = ngx_slprintf(at, end, "\"");
    at = print_policy_name(at, end, limit, rate);
    return ngx_slprintf(at, end, "\"");
}

std::size_t policy_size(const DecidedLimit& limit) {
    return limit.applied->zone->name.len + 3 * NGX_INT64_LEN + sizeof("\"\";q=;w=, ");
}

bool set_policies(ngx_http_request_t* r, const RequestState& state) {
    std::size_t size = 0;
    for (std::uint32_t i = 0; i < state.count; i++) {
        size += state.limits[i].rates->size * policy_size(state.limits[i]);
    }
    auto* text = static_cast<u_char*>(ngx_pnalloc(r->pool, size));
    if (text == nullptr) {
        return false;
    }
    u_char* at = text;
    u_char* const end = text + size;
    for (std::uint32_t i = 0; i < state.count; i++) {
        const DecidedLimit& limit = state.limits[i];
        for (std::uint32_t j = 0; j < limit.rates->size; j++) {
            const Rate& rate = limit.rates->rates[j];
            at = ngx_slprintf(at, end, "%s", at == text ? "" : ", ");
            at = print_quoted_name(at, end, limit, j);
            at = ngx_slprintf(at, end, ";q=%uD;w=%L", capacity_of(limit.applied->policy, rate),
                              static_cast<int64_t>(seconds_up(window_of(limit.applied->policy, rate))));
        }
    }
    return set_header(r, "RateLimit-Policy", {static_cast<std::size_t>(at - text), text});
}

bool set_ietf(ngx_http_request_t* r, const RequestState& state, const DecidedLimit& limit) {
    const std::size_t size = policy_size(limit);
    auto* text = static_cast<u_char*>(ngx_pnalloc(r->pool, size));
    if (text == nullptr || !set_policies(r, state)) {
        return false;
    }
    u_char* at = print_quoted_name(text, text + size, limit, limit.decision.rate);
    // sliding_window forgets the last request only after two windows, but what remains has to last for one.
    const Micros window = window_of(limit.applied->policy, limit.rates->rates[limit.decision.rate]);
    at = ngx_slprintf(at, text + size, ";r=%uD;t=%L", limit.decision.remaining,
                      static_cast<int64_t>(seconds_up(ngx_min(limit.decision.reset_after, window))));
    return set_header(r, "RateLimit", {static_cast<std::size_t>(at - text), text});
}

ngx_int_t filter_headers(ngx_http_request_t* r) {
    const RequestState* state = r == r->main ? request_state(r) : nullptr;
    const DecidedLimit* limit = binding_limit(state);
    if (state == nullptr || limit == nullptr || state->headers == NGX_HTTP_RATE_LIMIT_HEADERS_OFF) {
        return next_filter(r);
    }
    const Decision& decision = limit->decision;
    if ((state->headers & NGX_HTTP_RATE_LIMIT_HEADERS_LEGACY) != 0 && !set_legacy(r, *state, decision)) {
        return NGX_ERROR;
    }
    if ((state->headers & NGX_HTTP_RATE_LIMIT_HEADERS_IETF) != 0 && !set_ietf(r, *state, *limit)) {
        return NGX_ERROR;
    }
    if (state->status == Status::kRejected && decision.retry_after != kNever &&
        !set_number(r, "Retry-After", seconds_up(decision.retry_after))) {
        return NGX_ERROR;
    }
    return next_filter(r);
}

}  // namespace

void add_header_filter() {
    next_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = filter_headers;
}

}  // namespace rate_limit
