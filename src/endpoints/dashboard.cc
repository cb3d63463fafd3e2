// The dashboard: a page, and the API calls that the page makes.
#include "api/answer.h"
#include "api/api.h"
#include "configuration/configuration.h"
#include "endpoints/dashboard_text.h"
#include "request/headers.h"

namespace rate_limit {
namespace {

bool add_headers(ngx_http_request_t* r) {
    r->headers_out.etag = add_header(r, "ETag", kPageTag);
    return r->headers_out.etag != nullptr && add_answer_header(r, "Content-Security-Policy", kPagePolicy) &&
           add_answer_header(r, "X-Content-Type-Options", "nosniff") &&
           add_answer_header(r, "Referrer-Policy", "no-referrer") &&
           add_answer_header(r, "Cache-Control", "no-cache");
}

ngx_int_t send_page(ngx_http_request_t* r) {
    if ((r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD)) == 0) {
        return add_answer_header(r, "Allow", "GET, HEAD") ? NGX_HTTP_NOT_ALLOWED
                                                          : NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    const ngx_int_t discarded = ngx_http_discard_request_body(r);
    if (discarded != NGX_OK) {
        return discarded;
    }
    const ngx_str_t page = ngx_str(std::string_view(kPage, sizeof(kPage) - 1));
    ngx_str_set(&r->headers_out.content_type, "text/html; charset=utf-8");
    r->headers_out.content_type_len = sizeof("text/html") - 1;
    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = static_cast<off_t>(page.len);
    auto* buffer = static_cast<ngx_buf_t*>(ngx_calloc_buf(r->pool));
    if (buffer == nullptr || !add_headers(r)) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    const ngx_int_t sent = ngx_http_send_header(r);
    if (sent == NGX_ERROR || sent > NGX_OK || r->header_only) {
        return sent;
    }
    buffer->pos = page.data;
    buffer->last = page.data + page.len;
    buffer->memory = 1;
    buffer->last_buf = r == r->main ? 1 : 0;
    buffer->last_in_chain = 1;
    ngx_chain_t chain = {buffer, nullptr};
    return ngx_http_output_filter(r, &chain);
}

// The page is at the path of the location, and the API is below it.
ngx_int_t handle_dashboard(ngx_http_request_t* r) {
    return api_path(r).empty() ? send_page(r) : handle_api(r);
}

// Whether a location receives all requests below its path, and its path ends in a slash.
bool is_folder(const ngx_http_core_loc_conf_t& core) {
#if (NGX_PCRE)
    if (core.regex != nullptr) {
        return false;
    }
#endif
    return !core.exact_match && !core.named && core.name.len != 0 && core.name.data[core.name.len - 1] == '/';
}

}  // namespace
}  // namespace rate_limit

extern "C" char* ngx_http_rate_limit_dashboard(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    ngx_http_core_loc_conf_t* core = rate_limit::core_loc_conf_of(cf);
    if (!rate_limit::is_folder(*core)) {
        return rate_limit::refuse(cf, cmd,
                                  "invalid location \"%V\", it must end in / and be neither exact nor a "
                                  "regular expression",
                                  &core->name);
    }
    core->auto_redirect = 1;  // of a path without the last slash
    return rate_limit::read_api_settings(cf, cmd, static_cast<ngx_http_rate_limit_loc_conf_t*>(conf),
                                         rate_limit::handle_dashboard);
}
