// The rates and the cost of a limit for one request. Variables may set them.
#pragma once

#include "nginx/zone.h"
#include "store/shared_state.h"

namespace rate_limit {

// The rates of a zone that apply to all its clients: the live rates, else the configured ones. Null if the
// rates of a client depend on its requests (rate=$variable).
const RateList* common_rates(Zone* zone);

// The rates in force for a request: the common rates, else the value of rate=$variable. Null if the value,
// which is stored in `*text`, is not a rate, or needs more room than the zone has.
const RateList* rates_of(ngx_http_request_t* r, Zone* zone, ngx_str_t* text);

// The cost by the variable of cost=. A value that is not a cost is logged, and counts as 1.
std::uint64_t variable_cost(ngx_http_request_t* r, const AppliedLimit& applied);

// The policy with the rates by the variable of rate=, or with the live rates. Null if the value of the
// variable is not valid, or memory is exhausted.
const Policy* variable_policy(ngx_http_request_t* r, const AppliedLimit& applied);

// The policy for a correction of a request that was decided by `decided`: with the live rates, which may have
// changed since.
const Policy& policy_for_correction(ngx_http_request_t* r, Zone* zone, const Policy& decided);

// The cost of a request.
inline std::uint64_t cost_of(ngx_http_request_t* r, const AppliedLimit& applied) {
    return applied.cost == nullptr ? applied.fixed_cost : variable_cost(r, applied);
}

// The policy for a request; null as in variable_policy.
inline const Policy* policy_of(ngx_http_request_t* r, const AppliedLimit& applied) {
    const bool fixed = applied.zone->rate == nullptr && applied.zone->shared->live.version() == 0;
    return fixed ? &applied.policy : variable_policy(r, applied);
}

}  // namespace rate_limit
