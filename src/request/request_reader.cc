// Has nginx read the request body, and reads numbers out of its buffers or its file.
#include "request/request_reader.h"

#include "nginx/collections.h"
#include "request/body_values.h"

namespace rate_limit {
namespace {

bool decides_something(const ngx_http_rate_limit_loc_conf_t& conf) {
    return (conf.limits != nullptr && conf.limits->nelts != 0) ||
           (conf.shadows != nullptr && conf.shadows->nelts != 0);
}

bool may_have_body(const ngx_http_request_t& r) {
    return r.headers_in.content_length_n > 0 || r.headers_in.chunked ||
           (r.request_body != nullptr && r.request_body->bufs != nullptr);
}

// The Content-Encoding; empty if there is none.
std::string_view encoding_of(const ngx_http_request_t& r) {
    for (const ngx_table_elt_t& header : elements<ngx_table_elt_t>(r.headers_in.headers)) {
        if (same_letters(view(header.key), "Content-Encoding")) {
            return view(header.value);
        }
    }
    return {};
}

// Whether the headers describe a body that can be read. Counts a body that cannot.
bool is_readable(ngx_http_request_t* r) {
    const ngx_table_elt_t* type = r->headers_in.content_type;
    if (type == nullptr || body::format_of(view(type->value)) != body::Format::kJson) {
        count_body(r, BodyKind::kRequest, BodyResult::kNotJson);
        return false;
    }
    if (body::is_encoded(encoding_of(*r))) {
        count_body(r, BodyKind::kRequest, BodyResult::kCompressed);
        return false;
    }
    return true;
}

void go_on(ngx_http_request_t* r) {
    r->write_event_handler = ngx_http_core_run_phases;
    ngx_http_core_run_phases(r);
}

ngx_int_t wait_for_body(ngx_http_request_t* r) {
    const ngx_int_t rc = ngx_http_read_client_request_body(r, go_on);
    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }
    ngx_http_finalize_request(r, NGX_DONE);
    return NGX_DONE;
}

// The error page of a request that is too large is not read and not limited.
ngx_int_t refuse_large(ngx_http_request_t* r, const BodySettings& settings, RequestState* state) {
    state->flow = Flow::kRefused;
    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "the request body is larger than \"max=\" of \"rate_limit_request\": %uz bytes",
                  settings.most);
    count_body(r, BodyKind::kRequest, BodyResult::kTooLarge);
    return NGX_HTTP_REQUEST_ENTITY_TOO_LARGE;
}

// Reads the part of the body that nginx has written to a file. False on an error, which is logged.
bool feed_file(const ngx_buf_t& buffer, body::BodyReader* reader) {
    u_char piece[4096];
    for (off_t at = buffer.file_pos; at < buffer.file_last;) {
        const auto size = static_cast<std::size_t>(ngx_min(buffer.file_last - at, off_t{sizeof(piece)}));
        const ssize_t got = ngx_read_file(buffer.file, piece, size, at);
        if (got <= 0) {
            return false;
        }
        reader->feed(reinterpret_cast<const char*>(piece), static_cast<std::size_t>(got));
        at += got;
    }
    return true;
}

ngx_int_t read_buffers(ngx_http_request_t* r, const BodySettings& settings, RequestState* state) {
    body::BodyReader* reader = &state->request_body->reader;
    off_t size = 0;
    for (const ngx_chain_t* link = r->request_body->bufs; link != nullptr; link = link->next) {
        size += ngx_buf_size(link->buf);
    }
    if (size > static_cast<off_t>(settings.most)) {
        return refuse_large(r, settings, state);
    }
    for (const ngx_chain_t* link = r->request_body->bufs; link != nullptr; link = link->next) {
        const ngx_buf_t& buffer = *link->buf;
        if (ngx_buf_in_memory(&buffer)) {
            reader->feed(reinterpret_cast<const char*>(buffer.pos),
                         static_cast<std::size_t>(buffer.last - buffer.pos));
        } else if (buffer.in_file && !feed_file(buffer, reader)) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }
    if (!reader->is_empty()) {
        count_body(r, BodyKind::kRequest, finish_body(state->request_body));
    }
    return NGX_DECLINED;
}

}  // namespace

ngx_int_t read_request_body(ngx_http_request_t* r, const ngx_http_rate_limit_loc_conf_t& conf) {
    const auto& settings = *static_cast<const BodySettings*>(conf.requests);
    RequestState* state = request_state(r);
    const bool is_done =
        state != nullptr && (state->flow != Flow::kFree || state->request_settings == &settings);
    if (is_done || !decides_something(conf) || !may_have_body(*r) || r->discard_body) {
        return NGX_DECLINED;
    }
    state = state != nullptr ? state : make_request_state(r);
    if (state == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    if (!is_readable(r)) {
        state->request_settings = &settings;
        state->request_body = nullptr;
        return NGX_DECLINED;
    }
    if (r->headers_in.content_length_n > static_cast<off_t>(settings.most)) {
        return refuse_large(r, settings, state);
    }
    if (r->request_body == nullptr) {
        return wait_for_body(r);
    }
    state->request_settings = &settings;
    state->request_body = new_read_body(r, settings, body::Format::kJson);
    return state->request_body != nullptr ? read_buffers(r, settings, state) : NGX_HTTP_INTERNAL_SERVER_ERROR;
}

}  // namespace rate_limit
