// What a limit means for one request: its rates and its cost, which variables may say.
#pragma once

#include "nginx/zone.h"
#include "store/shared_state.h"

namespace rate_limit {

// The cost that a variable says; what is no cost counts as 1.
std::uint32_t told_cost(ngx_http_request_t* r, const AppliedLimit& applied);

// The policy with the rates that a variable says, or that were changed while nginx runs; null if they cannot
// be told.
const Policy* told_policy(ngx_http_request_t* r, const AppliedLimit& applied);

// The cost of a request.
inline std::uint32_t cost_of(ngx_http_request_t* r, const AppliedLimit& applied) {
    return applied.cost == nullptr ? applied.fixed_cost : told_cost(r, applied);
}

// The policy that holds for this request; null if its rate cannot be told.
inline const Policy* policy_of(ngx_http_request_t* r, const AppliedLimit& applied) {
    const bool fixed = applied.zone->rate == nullptr && applied.zone->shared->live.version() == 0;
    return fixed ? &applied.policy : told_policy(r, applied);
}

}  // namespace rate_limit
