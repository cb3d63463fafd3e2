// The state of a request in this module, from its first check to its last header.
#pragma once

#include "algorithms/check.h"
#include "identity/claims.h"
#include "nginx/zone.h"

namespace rate_limit {

struct BodySettings;
struct ReadBody;

// In the order of severity: of the phases of a location, the more severe status is shown.
enum class Status : std::uint8_t {
    kNone,      // no limit was checked yet
    kBypassed,  // no limit applied: the key is empty, or the rate is off
    kPassed,
    kError,  // a limit could not be decided, and fails open or closed
    kDelayedDryRun,
    kDelayed,
    kRejectedDryRun,
    kRejected,
};

inline bool is_dry_run(Status status) {
    return status == Status::kDelayedDryRun || status == Status::kRejectedDryRun;
}

// The step that a request has reached in the phase that decides its limits.
enum class Flow : std::uint8_t {
    kFree,     // limits may be decided
    kAsking,   // `check` waits for Redis
    kDelayed,  // admitted, until its delay ends: the next run of the handler lets the request pass
    kRefused,  // rejected or failed: the error page of the request is not limited again
};

// Belongs to the main request and survives internal redirects, which clear the contexts of modules.
struct RequestState {
    Status status = Status::kNone;
    Flow flow = Flow::kFree;
    bool undecided = false;                    // a limit of the current location could not be decided
    bool token_read = false;                   // if the token is valid, `claims` is set
    redis::Error error = redis::Error::kNone;  // why a Redis did not answer
    std::uint32_t count = 0;                   // number of decided limits
    std::uint32_t deciding = 0;                // number of limits after them, which are being decided
    std::uint32_t room = 0;                    // capacity of `limits`
    std::uint32_t binding = 0;                 // index of the limit that binds, for logs and variables
    std::uint32_t shown = 0;                   // the same among the limits that clients are told of
    std::uint32_t headers = 0;                 // NGX_HTTP_RATE_LIMIT_HEADERS_* of the location that decided;
                                               // OFF if clients are told of no limit
    Limit* limits = nullptr;
    RequestCheck* check = nullptr;                   // only if the flow is kAsking
    identity::Json claims;                           // of the token, if the token is valid
    ReadBody* request_body = nullptr;                // of rate_limit_request; null if not read
    const BodySettings* request_settings = nullptr;  // that the request body was last read for
    ReadBody* response_body = nullptr;               // of rate_limit_response; null if not read
    ngx_array_t* shadows = nullptr;   // of pointers to Zone: shadows that have decided; may be null
    ngx_array_t* left_out = nullptr;  // of pointers to Zone: undecided, not checked again; may be null
    ngx_array_t* bypassed = nullptr;  // of pointers to Zone: counted as bypassed; may be null
    ngx_array_t* hidden = nullptr;    // of pointers to Zone: of headers=off; may be null
};

inline const ngx_http_rate_limit_loc_conf_t* location_conf(ngx_http_request_t* r) {
    return static_cast<ngx_http_rate_limit_loc_conf_t*>(
        ngx_http_get_module_loc_conf(r, ngx_http_rate_limit_module));
}

// Finds the state of a main request whose module contexts were cleared; null if the request has no state.
RequestState* recall_state(ngx_http_request_t* main);

// The state of a request; null if the request has none.
inline RequestState* request_state(ngx_http_request_t* r) {
    ngx_http_request_t* main = r->main;
    auto* state = static_cast<RequestState*>(ngx_http_get_module_ctx(main, ngx_http_rate_limit_module));
    return state != nullptr || !(main->internal || main->filter_finalize) ? state : recall_state(main);
}

// Creates the state of a main request that has none, with room for one limit; null if memory is exhausted.
RequestState* new_request_state(ngx_http_request_t* main);

// The state of a request, created if there is none; null if memory is exhausted.
inline RequestState* make_request_state(ngx_http_request_t* r) {
    RequestState* state = request_state(r);
    return state != nullptr ? state : new_request_state(r->main);
}

// The state of a request, as above, with room for `more` limits after the decided ones.
RequestState* make_request_state(ngx_http_request_t* r, std::size_t more);

// Whether a zone is in one of the lists of a request's state. The list may be null.
bool has_zone(const ngx_array_t* zones, const Zone* zone);

// Adds a zone to one of the lists of a request's state, and creates the list if it is null. False if the list
// has the zone already, or memory is exhausted.
bool add_zone(ngx_http_request_t* r, const Zone* zone, ngx_array_t** zones);

// The limit that binds; null if no limit was decided.
inline const Limit* binding_limit(const RequestState* state) {
    return state != nullptr && state->count != 0 ? &state->limits[state->binding] : nullptr;
}

// Whether the client is told of a limit of its request.
inline bool is_shown(const RequestState& state, const Limit& limit) {
    return state.hidden == nullptr || !has_zone(state.hidden, &zone_of(limit));
}

// The rejection that a rejected client is told of; null if the client is told of no limit that rejects it.
inline const Limit* shown_rejection(const RequestState& state) {
    const Limit& limit = state.limits[state.shown];
    return !limit.decision.allowed && is_shown(state, limit) ? &limit : nullptr;
}

// How long a rejected client is told to wait: Retry-After and its equivalents; kNever if it is not told.
inline Micros shown_wait(const RequestState& state) {
    const Decision& decision = state.limits[state.shown].decision;
    const bool told = state.status == Status::kRejected && state.headers != NGX_HTTP_RATE_LIMIT_HEADERS_OFF;
    return told && !decision.allowed ? decision.retry_after : kNever;
}

// Prints a sentence that says why a request can never be admitted, of at most kLongestReason bytes and the
// name of the zone. Returns the end of the text. The sentence needs no escaping in JSON.
constexpr std::size_t kLongestReason = 128;
u_char* print_never_reason(u_char* at, u_char* end, const Limit& limit);

// Prints the name of the policy of one rate: its zone, and its period if the policy has several rates.
// Returns the end of the text.
u_char* print_policy_name(u_char* at, u_char* end, const Limit& limit, std::uint32_t rate);

const char* status_name(Status status);

}  // namespace rate_limit
