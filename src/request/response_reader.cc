// Reads responses as they pass from their source to nginx's filters: before gzip compresses them. Buffers are
// passed on as they are.
#include "request/response_reader.h"

#include <algorithm>

#include "nginx/collections.h"
#include "request/body_values.h"

namespace rate_limit {
namespace {

ngx_http_output_header_filter_pt next_header_filter;
ngx_http_output_body_filter_pt next_body_filter;

bool has_body(const ngx_http_request_t& r) {
    return r.method != NGX_HTTP_HEAD && r.headers_out.status != NGX_HTTP_NO_CONTENT &&
           r.headers_out.status != NGX_HTTP_NOT_MODIFIED && r.headers_out.status >= NGX_HTTP_OK;
}

// Starts to read a response. A response of this module to a rejected request is not read.
void begin_response(ngx_http_request_t* r, const BodySettings& settings) {
    RequestState* state = request_state(r);
    if (state != nullptr) {
        state->response_body = nullptr;
    }
    if (!has_body(*r) || (state != nullptr && state->flow == Flow::kRefused)) {
        return;
    }
    const body::Format format = body::format_of(view(r->headers_out.content_type));
    if (format == body::Format::kOther) {
        count_body(r, BodyKind::kResponse, BodyResult::kNotJson);
        return;
    }
    const ngx_table_elt_t* encoding = r->headers_out.content_encoding;
    if (encoding != nullptr && encoding->hash != 0 && body::is_encoded(view(encoding->value))) {
        count_body(r, BodyKind::kResponse, BodyResult::kCompressed);
        return;
    }
    state = make_request_state(r);
    if (state != nullptr) {
        state->response_body = new_read_body(r, settings, format);
        // Makes nginx read files into memory, instead of sending them with sendfile.
        r->filter_need_in_memory = 1;
    }
}

void read_buffer(ngx_http_request_t* r, const ngx_buf_t& buffer, RequestState* state) {
    ReadBody* read = state->response_body;
    if (ngx_buf_in_memory(&buffer)) {
        read->reader.feed(reinterpret_cast<const char*>(buffer.pos),
                          static_cast<std::size_t>(buffer.last - buffer.pos));
    }
    if (buffer.last_buf && !read->reader.is_empty()) {
        count_body(r, BodyKind::kResponse, finish_body(read));
    }
}

ngx_int_t filter_headers(ngx_http_request_t* r) {
    const void* settings = location_conf(r)->responses;
    if (settings != nullptr && r == r->main) {
        begin_response(r, *static_cast<const BodySettings*>(settings));
    }
    return next_header_filter(r);
}

ngx_int_t filter_body(ngx_http_request_t* r, ngx_chain_t* in) {
    if (location_conf(r)->responses != nullptr && r == r->main && in != nullptr) {
        RequestState* state = request_state(r);
        if (state != nullptr && state->response_body != nullptr) {
            for (const ngx_chain_t* link = in; link != nullptr; link = link->next) {
                read_buffer(r, *link->buf, state);
            }
        }
    }
    return next_body_filter(r, in);
}

}  // namespace

void add_response_filters(ngx_conf_t* cf) {
    const auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_rate_limit_module));
    const auto variables = pointers<BodyVariable>(conf->body_variables);
    if (std::all_of(variables.begin(), variables.end(),
                    [](const BodyVariable* variable) { return variable->is_request; })) {
        return;
    }
    next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = filter_headers;
    next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = filter_body;
}

}  // namespace rate_limit
