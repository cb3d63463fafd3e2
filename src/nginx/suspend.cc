// The event handlers of a suspended request.
#include "nginx/suspend.h"

namespace rate_limit {
namespace {

// The write handler of a suspended request.
void stay_suspended(ngx_http_request_t* r) { end_if_cancelled(r); }

}  // namespace

ngx_http_cleanup_t* suspend(ngx_http_request_t* r, ngx_http_cleanup_pt gone, void* data) {
    ngx_http_cleanup_t* cleanup = ngx_http_cleanup_add(r, 0);
    if (cleanup == nullptr || ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
        return nullptr;
    }
    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0, "rate_limit: wait for Redis");
    cleanup->handler = gone;
    cleanup->data = data;
    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = stay_suspended;
    return cleanup;
}

bool is_suspended(const ngx_http_request_t* r) { return r->write_event_handler == stay_suspended; }

void run_phases_again(ngx_http_request_t* r) {
    if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }
    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;
    ngx_http_core_run_phases(r);
}

bool end_if_cancelled([[maybe_unused]] ngx_http_request_t* r) {
#if (nginx_version >= 1025000 && (NGX_QUIC || NGX_COMPAT))
    if (r->connection->quic != nullptr && r->connection->write->error) {
        ngx_log_error(NGX_LOG_INFO, r->connection->log, 0, "client cancelled the request");
        ngx_http_finalize_request(r, NGX_HTTP_CLIENT_CLOSED_REQUEST);
        return true;
    }
#endif
    return false;
}

}  // namespace rate_limit
