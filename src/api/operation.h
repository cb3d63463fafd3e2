// An operation on the fleet that an API call starts, and answers when Redis has answered.
#pragma once

#include <memory>

#include "fleet/fleet_operations.h"
#include "nginx/zone.h"

namespace rate_limit {

// Outlives its request if the client closes its connection.
struct ApiOperation {
    explicit ApiOperation(Zone* zone) : zone(zone) {}
    virtual ~ApiOperation();
    ApiOperation(const ApiOperation&) = delete;
    ApiOperation& operator=(const ApiOperation&) = delete;

    virtual FleetOperation* operation() = 0;

    // The router for the operation, of this worker.
    virtual redis::Router* router();

    // Called after the operation has succeeded. The request may have ended.
    virtual void on_success() {}

    // Answers the request, and returns the result for a content handler.
    virtual ngx_int_t answer() = 0;

    ngx_http_request_t* request = nullptr;  // null once the request has ended
    ngx_http_cleanup_t* cleanup = nullptr;  // of the request
    Zone* zone;
    redis::Alarm* task = nullptr;  // answers the request
};

// The zone of an operation.
OperationTarget operation_target(const Zone& zone);

// Starts an operation, and suspends the request until Redis has answered. The zone has a Redis. Returns the
// result for a content handler.
ngx_int_t start_operation(ngx_http_request_t* r, std::unique_ptr<ApiOperation> operation);

}  // namespace rate_limit
