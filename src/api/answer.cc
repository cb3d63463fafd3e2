// Responses of the API: JSON, problem documents and headers.
#include "api/answer.h"

#include <jansson.h>

#include <cstdlib>

#include "request/headers.h"

namespace rate_limit {
namespace {

struct Title {
    ngx_uint_t status;
    const char* text;
};

constexpr Title kTitles[] = {
    {NGX_HTTP_BAD_REQUEST, "Bad Request"},
    {NGX_HTTP_FORBIDDEN, "Forbidden"},
    {NGX_HTTP_NOT_FOUND, "Not Found"},
    {NGX_HTTP_NOT_ALLOWED, "Method Not Allowed"},
    {NGX_HTTP_REQUEST_ENTITY_TOO_LARGE, "Content Too Large"},
    {NGX_HTTP_UNSUPPORTED_MEDIA_TYPE, "Unsupported Media Type"},
    {NGX_HTTP_SERVICE_UNAVAILABLE, "Service Unavailable"},
};

const char* title_of(ngx_uint_t status) {
    for (const Title& title : kTitles) {
        if (title.status == status) {
            return title.text;
        }
    }
    return "Error";
}

// The headers of every response: it must not be cached, and its type must not be guessed.
bool add_common_headers(ngx_http_request_t* r) {
    return add_answer_header(r, "Cache-Control", "no-store") &&
           add_answer_header(r, "X-Content-Type-Options", "nosniff");
}

ngx_int_t send(ngx_http_request_t* r, ngx_uint_t status, const json_t* json, std::string_view type) {
    char* text = json != nullptr ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : nullptr;
    const std::size_t size = text != nullptr ? ngx_strlen(text) : 0;
    auto* body = text != nullptr ? static_cast<u_char*>(ngx_pnalloc(r->pool, size + 1)) : nullptr;
    if (body != nullptr) {
        ngx_memcpy(body, text, size);
        body[size] = '\n';
    }
    std::free(text);
    if (body == nullptr || !add_common_headers(r)) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    ngx_http_complex_value_t value = {};
    value.value = {size + 1, body};
    ngx_str_t content_type = ngx_str(type);
    return ngx_http_send_response(r, status, &content_type, &value);
}

}  // namespace

bool add_answer_header(ngx_http_request_t* r, std::string_view name, std::string_view value) {
    return add_header(r, name, value) != nullptr;
}

json_t* json_seconds(Micros micros) {
    return micros % kSecond == 0 ? json_integer(micros / kSecond)
                                 : json_real(static_cast<double>(micros) / kSecond);
}

ngx_int_t send_json(ngx_http_request_t* r, ngx_uint_t status, const identity::Json& json) {
    return send(r, status, json.get(), "application/json");
}

ngx_int_t send_api_problem(ngx_http_request_t* r, ngx_uint_t status, const std::string& detail) {
    const identity::Json json(json_pack("{ss ss si ss}", "type", "about:blank", "title", title_of(status),
                                        "status", static_cast<int>(status), "detail", detail.c_str()));
    return send(r, status, json.get(), "application/problem+json");
}

ngx_int_t send_no_content(ngx_http_request_t* r) {
    if (!add_common_headers(r)) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    ngx_http_complex_value_t value = {};
    return ngx_http_send_response(r, NGX_HTTP_NO_CONTENT, nullptr, &value);
}

}  // namespace rate_limit
