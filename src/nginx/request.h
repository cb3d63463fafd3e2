// What the module knows of a request, from its first check to its last header.
#pragma once

#include "core/check.h"
#include "identity/claims.h"
#include "nginx/zone.h"

namespace rate_limit {

enum class Status : std::uint8_t {
    kNone,      // no limit was looked at yet
    kBypassed,  // no limit applied: an empty key, or a rate that is off
    kPassed,
    kDelayed,
    kRejected,
    kDelayedDryRun,
    kRejectedDryRun,
    kError,  // a limit could not be decided, and fails open or closed
};

// Where a request is on its way through the access phase.
enum class Flow : std::uint8_t {
    kFree,     // limits may be decided
    kAsking,   // `check` waits for Redis
    kDelayed,  // admitted, and waits for its turn: the handler that runs next lets the request pass
    kRefused,  // answered instead of admitted: its error page is not limited again
};

// Belongs to the main request and survives internal redirects, which clear the contexts of modules.
struct RequestState {
    Status status = Status::kNone;
    Flow flow = Flow::kFree;
    bool undecided = false;                    // a limit of the current location has no rate, and is left out
    bool token_read = false;                   // `claims` is set if the token is valid
    redis::Error error = redis::Error::kNone;  // why a Redis did not answer
    std::uint32_t count = 0;                   // of decided limits
    std::uint32_t deciding = 0;                // limits behind those, which are being decided
    std::uint32_t room = 0;                    // size of `limits`
    std::uint32_t binding = 0;                 // index of the limit that the client is told of
    ngx_uint_t headers = 0;                    // of the location that decided
    Micros decided_at = 0;                     // time of day
    Limit* limits = nullptr;
    RequestCheck* check = nullptr;    // if the flow is kAsking
    identity::Json claims;            // of its token, if that is valid
    ngx_array_t* shadows = nullptr;   // of pointers to Zone: shadows that have decided; may be null
    ngx_array_t* left_out = nullptr;  // of pointers to Zone: not decided, and not asked again; may be null
    ngx_array_t* bypassed = nullptr;  // of pointers to Zone: counted as bypassed; may be null
};

inline const ngx_http_rate_limit_loc_conf_t* location_conf(ngx_http_request_t* r) {
    return static_cast<ngx_http_rate_limit_loc_conf_t*>(
        ngx_http_get_module_loc_conf(r, ngx_http_rate_limit_module));
}

// The state of a main request whose module contexts were cleared; null if nothing is known of it.
RequestState* recall_state(ngx_http_request_t* main);

// The state of a request; null if nothing is known of it.
inline RequestState* request_state(ngx_http_request_t* r) {
    ngx_http_request_t* main = r->main;
    auto* state = static_cast<RequestState*>(ngx_http_get_module_ctx(main, ngx_http_rate_limit_module));
    return state != nullptr || !(main->internal || main->filter_finalize) ? state : recall_state(main);
}

// A state for a main request that has none, with room for one limit; null if there is no memory.
RequestState* new_request_state(ngx_http_request_t* main);

// The state of a request, made if there is none; null if there is no memory.
inline RequestState* make_request_state(ngx_http_request_t* r) {
    RequestState* state = request_state(r);
    return state != nullptr ? state : new_request_state(r->main);
}

// The same, with room for so many more limits.
RequestState* make_request_state(ngx_http_request_t* r, std::size_t more);

// Whether a zone is in one of the lists of a request's state, which may be null.
bool has_zone(const ngx_array_t* zones, const Zone* zone);

// Adds a zone to one of the lists of a request's state, which is made if it is null; false if the zone is in
// it already, or there is no memory.
bool add_zone(ngx_http_request_t* r, const Zone* zone, ngx_array_t** zones);

// The limit whose numbers the client is told; null if no limit was decided.
inline const Limit* binding_limit(const RequestState* state) {
    return state != nullptr && state->count != 0 ? &state->limits[state->binding] : nullptr;
}

// The name of one rate's policy: its zone, and its period where the zone has several rates.
u_char* print_policy_name(u_char* at, u_char* end, const Limit& limit, std::uint32_t rate);

const char* status_name(Status status);

}  // namespace rate_limit
