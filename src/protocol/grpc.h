// What a gRPC client sends and receives: its media type, and the google.rpc.Status of a rejection.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/time.h"

namespace rate_limit {

// The codes that the module chooses itself.
constexpr unsigned kGrpcResourceExhausted = 8;
constexpr unsigned kGrpcUnavailable = 14;
constexpr unsigned kGrpcLastCode = 16;

// The media type of the response to a request with this Content-Type: that of the request, without
// parameters; empty if the request is neither gRPC nor gRPC-Web. A suffix that is not a valid one is left
// out.
std::string_view grpc_media_type(std::string_view content_type);

// Writes a google.rpc.Status with a google.rpc.RetryInfo, in protobuf's encoding, to `at`, which has room for
// the size of the message and kLongestRetryStatus bytes. `retry_after` is positive. Returns the end.
constexpr std::size_t kLongestRetryStatus = 128;
char* write_retry_status(unsigned code, std::string_view message, Micros retry_after, char* at);

}  // namespace rate_limit
