// Requests that wait for Redis, without a thread. A request that waits because it is delayed is in delay.h.
#pragma once

#include "nginx/ngx.h"

namespace rate_limit {

// Suspends a request. `gone` is called with `data` when the request ends, resumed or not, unless the handler
// of the returned clean-up is set to null. Returns null, and does not call `gone`, if the request cannot be
// suspended.
ngx_http_cleanup_t* suspend(ngx_http_request_t* r, ngx_http_cleanup_pt gone, void* data);

// Whether a request is suspended. It is not if its client has left and nginx runs its post_action.
bool is_suspended(const ngx_http_request_t* r);

// Resumes a request, if it is suspended, by calling `resumed`. Not from a callback of hiredis: the request
// may end.
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

// Ends a waiting request whose client has cancelled it over HTTP/3; false if the client has not. STOP_SENDING
// shows as an error of the write event; ngx_http_test_reading sees all other ways to leave.
bool end_if_cancelled(ngx_http_request_t* r);

}  // namespace rate_limit
