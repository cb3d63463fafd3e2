// Suspends requests while Redis decides, without blocking the worker. Delayed requests are in delay.h.
#pragma once

#include "nginx/ngx.h"

namespace rate_limit {

// Suspends a request. When the request ends, resumed or not, nginx calls `gone` with `data`, unless the
// caller has set the handler of the returned clean-up to null. If the request cannot be suspended, returns
// null, and `gone` is not called.
ngx_http_cleanup_t* suspend(ngx_http_request_t* r, ngx_http_cleanup_pt gone, void* data);

// Whether a request is suspended. False if the client has closed the connection and nginx runs the
// post_action of the request.
bool is_suspended(const ngx_http_request_t* r);

// Resumes a request, if it is suspended, by calling `resumed`. Must not be called from a callback of hiredis,
// because the request may end.
template <class Resumed>
void resume(ngx_http_request_t* r, Resumed resumed) {
    if (!is_suspended(r)) {
        return;
    }
    ngx_connection_t* c = r->connection;
    ngx_http_set_log_request(c->log, r);
    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, c->log, 0, "rate_limit: Redis has answered");
    resumed();
    ngx_http_run_posted_requests(c);
}

// Runs the phases of a request again from the handler that suspended or delayed it.
void run_phases_again(ngx_http_request_t* r);

// Ends a waiting request that its client has cancelled over HTTP/3; false if the client has not. STOP_SENDING
// is visible as an error of the write event. ngx_http_test_reading detects all other ends of a connection.
bool end_if_cancelled(ngx_http_request_t* r);

}  // namespace rate_limit
