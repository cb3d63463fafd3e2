// What a limit means for one request: its rates and its cost, which variables may say.
#pragma once

#include "nginx/zone.h"
#include "store/shared_state.h"

namespace rate_limit {

// The rates of a zone that hold for all its clients: the live rates, else the configured ones. Null if the
// rates of a client depend on its requests (rate=$variable).
const RateList* common_rates(Zone* zone);

// The rates in force for a request: the common ones, else those of rate=$variable. Null if the variable's
// value, which is put into `*text`, is not a rate, or more than the zone has room for.
const RateList* rates_of(ngx_http_request_t* r, Zone* zone, ngx_str_t* text);

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
