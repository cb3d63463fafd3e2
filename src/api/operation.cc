// Suspends the request of an operation, and answers it.
#include "api/operation.h"

#include <string>

#include "nginx/background.h"
#include "nginx/event_loop.h"
#include "nginx/suspend.h"

namespace rate_limit {
namespace {

// The operation has ended: answers the request, unless the request has ended before.
void finish(void* self) {
    auto* operation = static_cast<ApiOperation*>(self);
    ngx_http_request_t* r = operation->request;
    if (r != nullptr) {
        operation->cleanup->handler = nullptr;
        resume(r, [=] { ngx_http_finalize_request(r, operation->answer()); });
    }
    delete operation;
}

void on_done(void* self) {
    auto* operation = static_cast<ApiOperation*>(self);
    if (operation->operation()->error() == redis::Error::kNone) {
        operation->on_success();
    }
    operation->task->arm(0);
}

// The request has ended; the operation continues.
void leave(void* self) {
    auto* operation = static_cast<ApiOperation*>(self);
    operation->request = nullptr;
    operation->cleanup = nullptr;
}

}  // namespace

ApiOperation::~ApiOperation() { delete task; }

redis::Router* ApiOperation::router() { return background_router(zone->redis); }

OperationTarget operation_target(const Zone& zone) {
    return {fleet_zone(zone), zone.redis != nullptr ? zone.redis->options.prefix : std::string(),
            &this_process()};
}

ngx_int_t start_operation(ngx_http_request_t* r, std::unique_ptr<ApiOperation> operation) {
    operation->cleanup = suspend(r, leave, operation.get());
    if (operation->cleanup == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    operation->task = nginx_loop()->make_task(finish, operation.get());
    operation->request = r;
    r->main->count++;
    ApiOperation* started = operation.release();
    started->operation()->start(started->router(), on_done, started);
    return NGX_DONE;
}

}  // namespace rate_limit
