// Counts the requests that a worker decides, and adds up the counts of all workers for operators.
#pragma once

#include <string_view>
#include <vector>

#include "nginx/zone.h"
#include "statistics/statistics.h"
#include "store/reason.h"
#include "store/redis_statistics.h"

namespace rate_limit {

// Whether any location of the configuration shows counters. If not, nothing needs to be counted.
inline bool is_observed(ngx_http_request_t* r) {
    const auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_get_module_main_conf(r, ngx_http_rate_limit_module));
    return conf->observed != 0;
}

// Counts one limit of a request. `outcome` is the outcome of all limits of the request.
void count_limit(const Limit& limit, const RequestOutcome& outcome, bool dry_run);

// Counts all limits of a request.
void count_limits(const Limit* limits, std::size_t count, const RequestOutcome& outcome, bool dry_run);

// Callbacks for RequestCheck::leave: count the limits of a request that ended before they were decided.
void count_left(const RequestCheck& check);
void count_left_dry_run(const RequestCheck& check);

// Counts a request that a zone could not decide.
void count_reason(const Zone& zone, Reason reason);

// Counts a request that ended, by its client or by an error, while it waited for Redis or was delayed.
void count_aborted(const Zone& zone);

// Counts a request that a zone did not apply to.
void count_bypass(const Zone& zone, Bypass bypass);

// Counts a charge that was corrected when its request had ended.
void count_settled(const Zone& zone, Settled settled);

// Counts the decision of a shadow on a request of this client. `live` and `shadow`: whether the live limits
// and the shadow admit the request.
void count_shadow(const Zone& zone, std::string_view client, bool live, bool shadow);

// Totals of all workers.
ZoneTotals zone_totals(const Zone& zone);
RedisTotals redis_totals(const RedisServer& server);

// The number of workers of this nginx that have a breaker open.
unsigned open_breakers(const RedisServer& server);

// Whether a Redis answers, as far as this nginx knows: each Redis that a zone uses is polled twice a second.
bool is_up(const RedisServer& server);

// The clients that a zone rejected most often in the last five minutes, at most `most` clients, the most
// often rejected first. Names are as shown_name returns them, not escaped.
std::vector<TopClient> limited_clients(const Zone& zone, std::size_t most);

// Whether a reason can occur in a zone.
bool may_have_reason(const Zone& zone, Reason reason);

}  // namespace rate_limit
