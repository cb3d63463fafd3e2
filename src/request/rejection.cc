// The response to a rejected request: a gRPC status, a problem document, nginx's own page or error_page.
#include "request/rejection.h"

#include <algorithm>

#include "identity/request_text.h"
#include "request/grpc.h"
#include "request/headers.h"

namespace rate_limit {
namespace {

constexpr std::string_view kProblemType = "application/problem+json";
constexpr ngx_int_t kProxyAuthRequired = 407;  // nginx has a name for this status since 1.29.7

// Cuts the first part off a list, without blanks around it.
std::string_view cut(std::string_view* rest, char mark) {
    const std::size_t at = rest->find(mark);
    const std::string_view part = rest->substr(0, at);
    rest->remove_prefix(at == std::string_view::npos ? rest->size() : at + 1);
    return identity::trim(part);
}

// Whether a media range of Accept names JSON and does not have q=0.
bool is_json(std::string_view range) {
    const std::string_view type = cut(&range, ';');
    const std::string_view suffix = "+json";
    const bool json =
        same_letters(type, "application/json") ||
        (type.size() > suffix.size() && same_letters(type.substr(type.size() - suffix.size()), suffix));
    while (json && !range.empty()) {
        const std::string_view parameter = cut(&range, ';');
        if (same_letters(parameter.substr(0, 2), "q=") &&
            parameter.find_first_not_of("0.", 2) == std::string_view::npos) {
            return false;
        }
    }
    return json;
}

bool accepts_json(const ngx_http_request_t& r) {
    for (const ngx_table_elt_t& header : request_headers(r)) {
        std::string_view ranges =
            same_letters(view(header.key), "Accept") ? view(header.value) : std::string_view();
        while (!ranges.empty()) {
            if (is_json(cut(&ranges, ','))) {
                return true;
            }
        }
    }
    return false;
}

bool has_error_page(ngx_http_request_t* r, ngx_uint_t status) {
    const auto* core =
        static_cast<ngx_http_core_loc_conf_t*>(ngx_http_get_module_loc_conf(r, ngx_http_core_module));
    if (core->error_pages == nullptr || (r->error_page && !core->recursive_error_pages)) {
        return false;
    }
    const auto pages = elements<ngx_http_err_page_t>(*core->error_pages);
    return std::any_of(pages.begin(), pages.end(), [&](const ngx_http_err_page_t& page) {
        return static_cast<ngx_uint_t>(page.status) == status;
    });
}

// Whether nginx, under `satisfy any`, asks the next module after an access handler has returned this status.
// Since nginx 1.31.0, it does so for 407.
bool can_be_satisfied(ngx_int_t status) {
    return status == NGX_HTTP_FORBIDDEN || status == NGX_HTTP_UNAUTHORIZED || status == kProxyAuthRequired;
}

// The names of zones need no escaping: they have no quotes and backslashes.
bool print_problem(ngx_http_request_t* r, const RequestState& state, ngx_uint_t status, ngx_str_t* body) {
    std::size_t size = 256 + kLongestReason + zone_of(state.limits[state.shown]).name.len;
    for (std::uint32_t i = 0; i < state.count; i++) {
        size += zone_of(state.limits[i]).name.len + NGX_INT64_LEN;
    }
    auto* text = static_cast<u_char*>(ngx_pnalloc(r->pool, size));
    if (text == nullptr) {
        return false;
    }
    u_char* const end = text + size;
    u_char* at = ngx_slprintf(text, end,
                              "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\","
                              "\"title\":\"Too Many Requests\",\"status\":%ui,",
                              status);
    const Limit* shown = shown_rejection(state);
    if (shown != nullptr && shown->decision.retry_after == kNever) {
        at = ngx_slprintf(at, end, "\"detail\":\"");
        at = print_never_reason(at, end, *shown);
        at = ngx_slprintf(at, end, "\",");
    }
    at = ngx_slprintf(at, end, "\"violated-policies\":[");
    const char* between = "\"";
    for (std::uint32_t i = 0; i < state.count; i++) {
        const Limit& limit = state.limits[i];
        if (!limit.decision.allowed && is_shown(state, limit)) {
            at = ngx_slprintf(at, end, "%s", between);
            at = print_policy_name(at, end, limit, limit.decision.rate);
            at = ngx_slprintf(at, end, "\"");
            between = ",\"";
        }
    }
    at = ngx_slprintf(at, end, "]}\n");
    *body = {static_cast<std::size_t>(at - text), text};
    return true;
}

ngx_int_t send_problem(ngx_http_request_t* r, const RequestState& state, ngx_uint_t status) {
    ngx_http_complex_value_t body = {};
    if (!print_problem(r, state, status, &body.value)) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    // In a location that error_page has redirected to, nginx would send the status of the first error.
    r->err_status = status;
    // A client with "Expect: 100-continue" must not send its body.
    r->expect_tested = 1;
    ngx_str_t type = ngx_str(kProblemType);
    return ngx_http_send_response(r, status, &type, &body);
}

}  // namespace

ngx_int_t reject(ngx_http_request_t* r, const RequestState& state) {
    const ngx_http_rate_limit_loc_conf_t* conf = location_conf(r);
    auto rc = static_cast<ngx_int_t>(conf->status);
    if (conf->status == NGX_HTTP_CLOSE) {
        return rc;
    }
    const std::string_view grpc = grpc_type(r);
    if (!grpc.empty()) {
        rc = send_grpc_rejection(r, state, grpc);
    } else if (conf->body != NGX_HTTP_RATE_LIMIT_BODY_OFF && !has_error_page(r, conf->status) &&
               (conf->body == NGX_HTTP_RATE_LIMIT_BODY_PROBLEM || accepts_json(*r))) {
        rc = send_problem(r, state, conf->status);
    } else if (!can_be_satisfied(rc)) {
        return rc;
    }
    // Under `satisfy any`, another module could admit the request after such a status: respond here.
    ngx_http_finalize_request(r, rc);
    return NGX_DONE;
}

ngx_int_t answer_unavailable(ngx_http_request_t* r) {
    const std::string_view grpc = grpc_type(r);
    if (grpc.empty()) {
        return NGX_HTTP_SERVICE_UNAVAILABLE;
    }
    ngx_http_finalize_request(r, send_grpc_unavailable(r, grpc));
    return NGX_DONE;
}

}  // namespace rate_limit
