// The header filter: X-RateLimit-*, RateLimit, RateLimit-Policy and Retry-After.
#include "request/headers.h"

#include <cstring>

#include "nginx/clock.h"
#include "request/request.h"

namespace rate_limit {
namespace {

ngx_http_output_header_filter_pt next_filter;

// The numbers from 0 to 99, with two digits each.
constexpr char kPairs[] =
    "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
    "505152535455565758596061626364656667686970717273747576777879808182838485868788899091929394959697989"
    "9";

constexpr std::string_view kLimit = "X-RateLimit-Limit";
constexpr std::string_view kRemaining = "X-RateLimit-Remaining";
constexpr std::string_view kReset = "X-RateLimit-Reset";
constexpr std::string_view kRetryAfter = "Retry-After";
constexpr std::string_view kPolicy = "RateLimit-Policy";
constexpr std::string_view kQuota = "RateLimit";

bool has_letter(const ngx_table_elt_t& header, char small) {
    return header.key.len != 0 && (header.key.data[0] | 0x20) == small;
}

// Whether the filter will set a header of the same name.
bool is_replaced(const ngx_table_elt_t& header, bool legacy, bool ietf, bool retry) {
    const std::string_view name = view(header.key);
    if (has_letter(header, 'x')) {
        return legacy &&
               (same_letters(name, kLimit) || same_letters(name, kRemaining) || same_letters(name, kReset));
    }
    return has_letter(header, 'r') && ((retry && same_letters(name, kRetryAfter)) ||
                                       (ietf && (same_letters(name, kPolicy) || same_letters(name, kQuota))));
}

// Removes headers that the filter will set, whoever has set them before.
void hide_others(ngx_http_request_t* r, bool legacy, bool ietf, bool retry) {
    for (ngx_table_elt_t& header : elements<ngx_table_elt_t>(r->headers_out.headers)) {
        if (is_replaced(header, legacy, ietf, retry)) {
            header.hash = 0;
        }
    }
}

std::string_view text_between(const u_char* text, const u_char* end) {
    return {reinterpret_cast<const char*>(text), static_cast<std::size_t>(end - text)};
}

// Adds the headers that are numbers: X-RateLimit-* if `legacy`, Retry-After if `retry`.
bool add_numbers(ngx_http_request_t* r, const Limit& limit, bool legacy, bool retry) {
    const Decision& decision = limit.decision;
    auto* end = static_cast<u_char*>(ngx_pnalloc(r->pool, 4 * kLongestNumber));
    if (end == nullptr) {
        return false;
    }
    const auto add = [&](std::string_view name, std::uint64_t number) {
        end += kLongestNumber;
        return add_header(r, name, text_between(print_number(number, end), end)) != nullptr;
    };
    const auto add_seconds = [&](std::string_view name, Micros time) {
        return add(name, static_cast<std::uint64_t>(seconds_up(time)));
    };
    return (!legacy || (add(kLimit, decision.limit) && add(kRemaining, decision.remaining) &&
                        add_seconds(kReset, limit.decided_at + decision.reset_after))) &&
           (!retry || add_seconds(kRetryAfter, decision.retry_after));
}

// An integer of RFC 9651 has at most 15 digits.
std::uint64_t as_integer(std::uint64_t number) {
    constexpr std::uint64_t kLargest = 999'999'999'999'999;
    return ngx_min(number, kLargest);
}

u_char* print_quoted_name(u_char* at, u_char* end, const Limit& limit, std::uint32_t rate) {
    at = ngx_slprintf(at, end, "\"");
    at = print_policy_name(at, end, limit, rate);
    return ngx_slprintf(at, end, "\"");
}

std::size_t policy_size(const Limit& limit) {
    return zone_of(limit).name.len + 3 * NGX_INT64_LEN + sizeof("\"\";q=;w=, ");
}

bool add_policies(ngx_http_request_t* r, const RequestState& state) {
    std::size_t size = 0;
    for (std::uint32_t i = 0; i < state.count; i++) {
        size += state.limits[i].policy->rates.size * policy_size(state.limits[i]);
    }
    auto* text = static_cast<u_char*>(ngx_pnalloc(r->pool, size));
    if (text == nullptr) {
        return false;
    }
    u_char* at = text;
    u_char* const end = text + size;
    for (std::uint32_t i = 0; i < state.count; i++) {
        const Limit& limit = state.limits[i];
        for (std::uint32_t j = 0; is_shown(state, limit) && j < limit.policy->rates.size; j++) {
            const Rate& rate = limit.policy->rates.rates[j];
            at = ngx_slprintf(at, end, "%s", at == text ? "" : ", ");
            at = print_quoted_name(at, end, limit, j);
            at = ngx_slprintf(at, end, ";q=%uL;w=%L", as_integer(capacity_of(*limit.policy, rate)),
                              static_cast<int64_t>(seconds_up(window_of(*limit.policy, rate))));
        }
    }
    return add_header(r, kPolicy, text_between(text, at)) != nullptr;
}

// How long the remaining quota must last. A rejected client may retry after that, so that Retry-After is not
// earlier. sliding_window remembers a request for up to two windows, but the remaining quota is for one
// window.
Micros effective_window(const Limit& limit) {
    const Decision& decision = limit.decision;
    const Micros window = window_of(*limit.policy, limit.policy->rates.rates[decision.rate]);
    const bool waits = !decision.allowed && decision.retry_after != kNever;
    const Micros wait = waits ? decision.retry_after : decision.reset_after;
    return ngx_min(wait, window);
}

bool add_ietf(ngx_http_request_t* r, const RequestState& state, const Limit& limit) {
    const std::size_t size = policy_size(limit);
    auto* text = static_cast<u_char*>(ngx_pnalloc(r->pool, size));
    if (text == nullptr || !add_policies(r, state)) {
        return false;
    }
    u_char* at = print_quoted_name(text, text + size, limit, limit.decision.rate);
    at = ngx_slprintf(at, text + size, ";r=%uL;t=%L", as_integer(limit.decision.remaining),
                      static_cast<int64_t>(seconds_up(effective_window(limit))));
    return add_header(r, kQuota, text_between(text, at)) != nullptr;
}

// Not inline, so that responses without these headers do not pay for it.
[[gnu::noinline]] bool add_headers(ngx_http_request_t* r, const RequestState& state) {
    const Limit& limit = state.limits[state.shown];
    const bool legacy = (state.headers & NGX_HTTP_RATE_LIMIT_HEADERS_LEGACY) != 0;
    const bool ietf = (state.headers & NGX_HTTP_RATE_LIMIT_HEADERS_IETF) != 0;
    const bool retry = shown_wait(state) != kNever;
    hide_others(r, legacy, ietf, retry);
    return add_numbers(r, limit, legacy, retry) && (!ietf || add_ietf(r, state, limit));
}

ngx_int_t filter_headers(ngx_http_request_t* r) {
    const RequestState* state = r == r->main ? request_state(r) : nullptr;
    if (state == nullptr || state->count == 0 || state->headers == NGX_HTTP_RATE_LIMIT_HEADERS_OFF) {
        return next_filter(r);
    }
    return add_headers(r, *state) ? next_filter(r) : NGX_ERROR;
}

}  // namespace

u_char* print_number(uint64_t number, u_char* end) {
    const auto put_pair = [&](unsigned pair) {
        end -= 2;
        std::memcpy(end, kPairs + pair * 2, 2);
    };
    // Most numbers fit 32 bits, whose division is faster.
    for (; number > 0xffffffff; number /= 100) {
        put_pair(static_cast<unsigned>(number % 100));
    }
    auto rest = static_cast<std::uint32_t>(number);
    for (; rest >= 100; rest /= 100) {
        put_pair(rest % 100);
    }
    if (rest >= 10) {
        put_pair(rest);
        return end;
    }
    *--end = static_cast<u_char>('0' + rest);
    return end;
}

ngx_table_elt_t* add_header(ngx_http_request_t* r, std::string_view name, std::string_view value) {
    auto* header = static_cast<ngx_table_elt_t*>(ngx_list_push(&r->headers_out.headers));
    if (header != nullptr) {
        *header = {};
        header->hash = 1;
        header->key = ngx_str(name);
        header->value = ngx_str(value);
    }
    return header;
}

void add_header_filter() {
    next_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = filter_headers;
}

}  // namespace rate_limit
