// Evaluates the variables of rate= and cost=, and uses live rates.
#include "handlers/effective_policy.h"

#include "nginx/clock.h"
#include "request/log.h"

namespace rate_limit {
namespace {

constexpr Micros kWarnEvery = 60 * kSecond;

// A copy of a policy with other rates, in the pool of the request; null if memory is exhausted.
const Policy* with_rates(ngx_http_request_t* r, const Policy& policy, const RateList& rates) {
    auto* copy = static_cast<Policy*>(ngx_palloc(r->pool, sizeof(Policy)));
    if (copy != nullptr) {
        *copy = policy;
        copy->rates = rates;
    }
    return copy;
}

}  // namespace

const RateList* common_rates(Zone* zone) {
    if (zone->shared->live.version() != 0) {
        zone_follow(zone);
        if (zone->is_live) {
            return &zone->live;
        }
    }
    return zone->rate == nullptr ? &zone->configured : nullptr;
}

const RateList* rates_of(ngx_http_request_t* r, Zone* zone, ngx_str_t* text) {
    const RateList* common = common_rates(zone);
    if (common != nullptr) {
        return common;
    }
    return ngx_http_complex_value(r, zone->rate, text) == NGX_OK
               ? zone->rates->read(view(*text), zone->policy, zone->layout)
               : nullptr;
}

std::uint64_t variable_cost(ngx_http_request_t* r, const AppliedLimit& applied) {
    ngx_str_t text;
    std::uint64_t cost = 1;
    if (ngx_http_complex_value(r, applied.cost, &text) == NGX_OK &&
        !parse_number(view(text), kMaxCost, &cost)) {
        if (applied.zone->shared->bad_cost.is_due(wall_clock(), kWarnEvery)) {
            const LogText word(text);
            ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                          "cost \"%V\" for zone \"%V\" is not a number from 0 to %uL: it counts as 1",
                          &word.escaped, &applied.zone->name, kMaxCost);
        }
        cost = 1;
    }
    return cost;
}

const Policy* variable_policy(ngx_http_request_t* r, const AppliedLimit& applied) {
    Zone* zone = applied.zone;
    ngx_str_t text = {};
    const RateList* rates = rates_of(r, zone, &text);
    if (rates == &zone->configured) {
        return &applied.policy;
    }
    if (rates == nullptr) {
        if (zone->shared->bad_rate.is_due(wall_clock(), kWarnEvery)) {
            const LogText word(text);
            ngx_log_error(
                NGX_LOG_ERR, r->connection->log, 0,
                "rate \"%V\" of zone \"%V\" is not a rate, or more than the zone has room for: requests %s",
                &word.escaped, &zone->name,
                zone->on_error == OnError::kClosed ? "are refused" : "are not limited by it");
        }
        return nullptr;
    }
    return with_rates(r, applied.policy, *rates);
}

const Policy& policy_for_correction(ngx_http_request_t* r, Zone* zone, const Policy& decided) {
    const RateList* rates = zone->shared->live.version() != 0 ? common_rates(zone) : nullptr;
    const Policy* present = rates != nullptr && rates->size != 0 ? with_rates(r, decided, *rates) : nullptr;
    return present != nullptr ? *present : decided;
}

}  // namespace rate_limit
