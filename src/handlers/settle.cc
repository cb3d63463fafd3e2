// Evaluates settle= when a response has ended, and has the store correct the charge.
#include "handlers/settle.h"

#include <algorithm>

#include "handlers/effective_policy.h"
#include "nginx/clock.h"
#include "request/counters.h"
#include "request/log.h"
#include "request/request.h"
#include "store/refund.h"
#include "store/shared_state.h"

namespace rate_limit {
namespace {

constexpr Micros kLogEvery = 60 * kSecond;

// Reads a number, rounded up to a whole one. False for anything else, also for a number above kMaxCost.
bool read_cost(std::string_view text, std::uint64_t* cost) {
    const std::size_t point = text.find('.');
    const std::string_view part = point < text.size() ? text.substr(point + 1) : std::string_view("0");
    const bool digits =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || !parse_number(text.substr(0, point), kMaxCost, cost)) {
        return false;
    }
    *cost += part.find_first_not_of('0') != std::string_view::npos ? 1 : 0;
    return *cost <= kMaxCost;
}

void log_bad_value(ngx_http_request_t* r, const Zone& zone, const ngx_str_t& text) {
    if (zone.shared->bad_settle.is_due(wall_clock(), kLogEvery)) {
        const LogText word(text);
        ngx_log_error(
            NGX_LOG_ERR, r->connection->log, 0,
            "settle \"%V\" for zone \"%V\" is not a number from 0 to %uL: the request stays charged "
            "as it is",
            &word.escaped, &zone.name, kMaxCost);
    }
}

void settle_limit(ngx_http_request_t* r, const AppliedLimit& applied, Limit* limit) {
    Zone* zone = applied.zone;
    ngx_str_t text;
    std::uint64_t actual = 0;
    Settled result = Settled::kKept;
    if (ngx_http_complex_value(r, applied.settle, &text) == NGX_OK) {
        if (read_cost(view(text), &actual)) {
            zone_connect_corrector(zone);
            limit->policy = &policy_for_correction(r, zone, *limit->policy);
            const std::uint64_t cost = limit->cost;
            if (is_debugged(r)) {
                debug_settled(r, *limit, actual);
            }
            if (settle(limit, actual, this_process(), wall_clock)) {
                result = actual > cost ? Settled::kMore : actual < cost ? Settled::kLess : Settled::kSame;
            }
        } else {
            log_bad_value(r, *zone, text);
        }
    }
    if (is_observed(r)) {
        count_settled(*zone, result);
    }
}

}  // namespace

ngx_int_t handle_log(ngx_http_request_t* r) {
    RequestState* state = r == r->main ? request_state(r) : nullptr;
    for (std::uint32_t i = 0; state != nullptr && i < state->count; i++) {
        Limit& limit = state->limits[i];
        const auto* applied = static_cast<const AppliedLimit*>(limit.tag);
        if (limit.charged && applied != nullptr && applied->settle != nullptr) {
            settle_limit(r, *applied, &limit);
        }
    }
    return NGX_OK;
}

}  // namespace rate_limit
