// What a worker counts of the requests that it has decided, and what an operator is told of all workers'
// counts.
#pragma once

#include <string_view>
#include <vector>

#include "memory/statistics.h"
#include "nginx/zone.h"
#include "store/reason.h"
#include "store/redis_statistics.h"

namespace rate_limit {

// Whether any location of the configuration tells of what is counted; nothing needs to be counted if not.
inline bool is_observed(ngx_http_request_t* r) {
    const auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_get_module_main_conf(r, ngx_http_rate_limit_module));
    return conf->observed != 0;
}

// Counts one limit of a request. `outcome` is that of all its limits.
void count_limit(const Limit& limit, const RequestOutcome& outcome, bool dry_run);

// Counts all limits of a request.
void count_limits(const Limit* limits, std::size_t count, const RequestOutcome& outcome, bool dry_run);

// Counts the limits of a request that had ended before they were decided: for RequestCheck::leave.
void count_left(const RequestCheck& check);
void count_left_dry_run(const RequestCheck& check);

// Counts a request that a zone could not decide.
void count_reason(const Zone& zone, Reason reason);

// Counts a request that ended, by its client or by an error, while it waited for Redis or for its turn.
void count_aborted(const Zone& zone);

// Counts a request that a zone did not apply to.
void count_bypass(const Zone& zone, Bypass bypass);

// Counts what a shadow would have done with a request of this client.
void count_shadow(const Zone& zone, std::string_view client, bool live, bool shadow);

// What all workers have counted.
ZoneTotals zone_totals(const Zone& zone);
RedisTotals redis_totals(const RedisServer& server);

// How many workers of this nginx have a breaker open.
unsigned open_breakers(const RedisServer& server);

// Whether a Redis answers, as far as is known: each that a zone uses is asked twice a second.
bool is_up(const RedisServer& server);

// The clients that a zone has rejected most in the last five minutes, at most so many, most first. Their
// names are as shown_name gives them: not escaped.
std::vector<TopClient> limited_clients(const Zone& zone, std::size_t most);

// Whether a reason is one that a zone can have.
bool may_have_reason(const Zone& zone, Reason reason);

}  // namespace rate_limit
