// Where a request's state is kept and found again.
#include "nginx/request.h"

#include <algorithm>

namespace rate_limit {
namespace {

// Ends a request's state, and marks the clean-up that holds it.
void destroy_state(void* state) { static_cast<RequestState*>(state)->~RequestState(); }

constexpr const char* kStatusNames[] = {"",         "BYPASSED",        "PASSED",           "DELAYED",
                                        "REJECTED", "DELAYED_DRY_RUN", "REJECTED_DRY_RUN", "ERROR"};

}  // namespace

RequestState* request_state(ngx_http_request_t* r) {
    ngx_http_request_t* main = r->main;
    auto* state = static_cast<RequestState*>(ngx_http_get_module_ctx(main, ngx_http_rate_limit_module));
    if (state != nullptr || !(main->internal || main->filter_finalize)) {
        return state;
    }
    for (ngx_pool_cleanup_t* cleanup = main->pool->cleanup; cleanup != nullptr; cleanup = cleanup->next) {
        if (cleanup->handler == destroy_state) {
            state = static_cast<RequestState*>(cleanup->data);
            ngx_http_set_ctx(main, state, ngx_http_rate_limit_module);
            return state;
        }
    }
    return nullptr;
}

RequestState* make_request_state(ngx_http_request_t* r, std::size_t more) {
    ngx_pool_t* pool = r->main->pool;
    RequestState* state = request_state(r);
    if (state == nullptr) {
        ngx_pool_cleanup_t* cleanup = ngx_pool_cleanup_add(pool, sizeof(RequestState));
        if (cleanup == nullptr) {
            return nullptr;
        }
        cleanup->handler = destroy_state;
        state = new (cleanup->data) RequestState();
        ngx_http_set_ctx(r->main, state, ngx_http_rate_limit_module);
    }
    if (state->count + more > state->room) {
        const std::size_t room = state->count + more;
        auto* limits = static_cast<DecidedLimit*>(ngx_palloc(pool, room * sizeof(DecidedLimit)));
        if (limits == nullptr) {
            return nullptr;
        }
        std::copy_n(state->limits, state->count, limits);
        state->limits = limits;
        state->room = static_cast<std::uint32_t>(room);
    }
    return state;
}

const DecidedLimit* binding_limit(const RequestState* state) {
    return state != nullptr && state->count != 0 ? &state->limits[state->binding] : nullptr;
}

u_char* print_policy_name(u_char* at, u_char* end, const DecidedLimit& limit, std::uint32_t rate) {
    at = ngx_slprintf(at, end, "%V", &limit.applied->zone->name);
    if (limit.rates->size == 1) {
        return at;
    }
    constexpr struct {
        Micros seconds;
        char letter;
    } kUnits[] = {{7 * 86400, 'w'}, {86400, 'd'}, {3600, 'h'}, {60, 'm'}, {1, 's'}};
    const Micros seconds = limit.rates->rates[rate].period / kSecond;
    const auto* unit = kUnits;
    while (seconds % unit->seconds != 0) {
        unit++;
    }
    return ngx_slprintf(at, end, "-%L%c", static_cast<int64_t>(seconds / unit->seconds), unit->letter);
}

const char* status_name(Status status) { return kStatusNames[static_cast<unsigned>(status)]; }

}  // namespace rate_limit
