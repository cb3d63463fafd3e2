// Delays a request with the timer of its write event.
#include "handlers/delay.h"

#include "nginx/suspend.h"
#include "request/counters.h"

namespace rate_limit {
namespace {

// The write handler of a delayed request.
void end_delay(ngx_http_request_t* r) {
    ngx_event_t* write = r->connection->write;
    if (end_if_cancelled(r)) {
        return;
    }
    if (!write->delayed) {
        ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0, "rate_limit: the delay has ended");
        run_phases_again(r);
    } else if (ngx_handle_write_event(write, 0) != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
    }
}

// Counts a request that ends while it is delayed. Counts it once, though each delay adds a clean-up.
void count_if_delayed(void* data) {
    auto* state = static_cast<RequestState*>(data);
    for (std::uint32_t i = 0; state->flow == Flow::kDelayed && i < state->count; i++) {
        count_aborted(zone_of(state->limits[i]));
    }
    state->flow = state->flow == Flow::kDelayed ? Flow::kFree : state->flow;
}

}  // namespace

ngx_int_t delay_request(ngx_http_request_t* r, Micros delay, RequestState* state) {
    state->flow = Flow::kDelayed;
    if (is_observed(r)) {
        ngx_http_cleanup_t* cleanup = ngx_http_cleanup_add(r, 0);
        if (cleanup == nullptr) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
        cleanup->handler = count_if_delayed;
        cleanup->data = state;
    }
    if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    ngx_event_t* write = r->connection->write;
    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = end_delay;
    write->delayed = 1;
    // A timer starts from nginx's cached time, which may be older than the decision.
    ngx_time_update();
    if (write->timer_set) {
        ngx_del_timer(write);
    }
    ngx_add_timer(write, static_cast<ngx_msec_t>((delay + 999) / 1000));
    return NGX_AGAIN;
}

}  // namespace rate_limit
