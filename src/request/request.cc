// Stores the state of a request in a clean-up of its pool, and finds the state again.
#include "request/request.h"

#include <algorithm>

namespace rate_limit {
namespace {

// The handler of the clean-up that holds a request's state; recall_state searches for this handler.
void destroy_state(void* state) { static_cast<RequestState*>(state)->~RequestState(); }

// A request's state, its clean-up, and room for one limit, which most requests have, in one allocation.
struct StateRoom {
    ngx_pool_cleanup_t cleanup;
    RequestState state;
    Limit limit;
};

constexpr const char* kStatusNames[] = {"",        "BYPASSED",         "PASSED",  "ERROR", "DELAYED_DRY_RUN",
                                        "DELAYED", "REJECTED_DRY_RUN", "REJECTED"};

}  // namespace

RequestState* recall_state(ngx_http_request_t* main) {
    for (ngx_pool_cleanup_t* cleanup = main->pool->cleanup; cleanup != nullptr; cleanup = cleanup->next) {
        if (cleanup->handler == destroy_state) {
            auto* state = static_cast<RequestState*>(cleanup->data);
            ngx_http_set_ctx(main, state, ngx_http_rate_limit_module);
            return state;
        }
    }
    return nullptr;
}

RequestState* new_request_state(ngx_http_request_t* main) {
    ngx_pool_t* pool = main->pool;
    auto* room = static_cast<StateRoom*>(ngx_palloc(pool, sizeof(StateRoom)));
    if (room == nullptr) {
        return nullptr;
    }
    auto* state = new (&room->state) RequestState;
    state->limits = &room->limit;
    state->room = 1;
    room->cleanup = {destroy_state, state, pool->cleanup};
    pool->cleanup = &room->cleanup;
    ngx_http_set_ctx(main, state, ngx_http_rate_limit_module);
    return state;
}

RequestState* make_request_state(ngx_http_request_t* r, std::size_t more) {
    RequestState* state = make_request_state(r);
    if (state != nullptr && state->count + more > state->room) {
        const std::size_t room = state->count + more;
        auto* limits = static_cast<Limit*>(ngx_palloc(r->main->pool, room * sizeof(Limit)));
        if (limits == nullptr) {
            return nullptr;
        }
        std::copy_n(state->limits, state->count, limits);
        state->limits = limits;
        state->room = static_cast<std::uint32_t>(room);
    }
    return state;
}

bool has_zone(const ngx_array_t* zones, const Zone* zone) {
    const auto* known = zones != nullptr ? static_cast<const Zone* const*>(zones->elts) : nullptr;
    return zones != nullptr && std::find(known, known + zones->nelts, zone) != known + zones->nelts;
}

bool add_zone(ngx_http_request_t* r, const Zone* zone, ngx_array_t** zones) {
    if (*zones == nullptr) {
        *zones = ngx_array_create(r->main->pool, 1, sizeof(Zone*));
    }
    if (*zones == nullptr || has_zone(*zones, zone)) {
        return false;
    }
    auto** slot = static_cast<const Zone**>(ngx_array_push(*zones));
    if (slot != nullptr) {
        *slot = zone;
    }
    return slot != nullptr;
}

u_char* print_policy_name(u_char* at, u_char* end, const Limit& limit, std::uint32_t rate) {
    at = ngx_slprintf(at, end, "%V", &zone_of(limit).name);
    if (limit.policy->rates.size == 1) {
        return at;
    }
    const PeriodUnit unit = unit_of_period(limit.policy->rates.rates[rate].period);
    return ngx_slprintf(at, end, "-%uL%c", unit.count, unit.letter);
}

u_char* print_never_reason(u_char* at, u_char* end, const Limit& limit) {
    at = ngx_slprintf(at, end, "The cost of the request (%uL) is above the limit (%uL) of policy ",
                      limit.cost, limit.decision.limit);
    at = print_policy_name(at, end, limit, limit.decision.rate);
    return ngx_slprintf(at, end, ".");
}

const char* status_name(Status status) { return kStatusNames[static_cast<unsigned>(status)]; }

}  // namespace rate_limit
