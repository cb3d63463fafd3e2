// The handler of the access phase: who the client is, what it may do, and what follows from it.
#include "nginx/answer.h"
#include "nginx/clock.h"
#include "nginx/configuration.h"

namespace rate_limit {
namespace {

constexpr Micros kComplainEvery = 60 * kSecond;

// A request's limits while they are being decided.
struct Group {
    std::size_t count = 0;
    bool failed = false;         // a limit could not be evaluated and is left out
    bool failed_closed = false;  // and must not be left out
    Limit limits[kMaxLimits];
    ngx_str_t keys[kMaxLimits];
    const AppliedLimit* applied[kMaxLimits];
    std::uint32_t entries[kMaxLimits];  // indices among the request's decided limits
};

// Whether the request was charged to the zone already, or rejected by it in earnest.
bool was_decided(ngx_http_request_t* r, const RequestState* state, const Zone* zone) {
    const bool tried =
        state != nullptr && state->status == Status::kRejectedDryRun && !location_conf(r)->dry_run;
    for (std::uint32_t i = 0; state != nullptr && !tried && i < state->count; i++) {
        if (state->limits[i].applied->zone == zone && state->limits[i].cost != 0) {
            return true;
        }
    }
    return false;
}

void fail(Group* group, const Zone& zone) {
    group->failed = true;
    group->failed_closed = group->failed_closed || zone.fail_closed;
}

// The cost of a request; what a variable says that is no cost counts as 1.
std::uint32_t cost_of(ngx_http_request_t* r, const AppliedLimit& applied) {
    if (applied.cost == nullptr) {
        return applied.fixed_cost;
    }
    ngx_str_t text;
    std::uint64_t cost = 1;
    if (ngx_http_complex_value(r, applied.cost, &text) == NGX_OK &&
        !parse_number(view(text), kMaxCost, &cost)) {
        const LogText word(text);
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "cost \"%V\" for zone \"%V\" is not a number from 0 to %uD: it counts as 1",
                      &word.escaped, &applied.zone->name, kMaxCost);
        cost = 1;
    }
    return static_cast<std::uint32_t>(cost);
}

// The policy that holds for this request; null if its rate cannot be told.
const Policy* policy_of(ngx_http_request_t* r, const AppliedLimit& applied) {
    Zone* zone = applied.zone;
    if (zone->rate == nullptr) {
        return &applied.policy;
    }
    ngx_str_t text;
    if (ngx_http_complex_value(r, zone->rate, &text) != NGX_OK) {
        return nullptr;
    }
    const RateList* rates = zone_rates(zone, text);
    if (rates == nullptr) {
        if (zone->table->remind(wall_clock(), kComplainEvery)) {
            const LogText word(text);
            ngx_log_error(
                NGX_LOG_ERR, r->connection->log, 0,
                "rate \"%V\" of zone \"%V\" is not a rate, or more than the zone has room for: requests %s",
                &word.escaped, &zone->name, zone->fail_closed ? "are refused" : "are not limited by it");
        }
        return nullptr;
    }
    auto* policy = static_cast<Policy*>(ngx_palloc(r->pool, sizeof(Policy)));
    if (policy != nullptr) {
        *policy = applied.policy;
        policy->rates = *rates;
    }
    return policy;
}

bool gather_limit(ngx_http_request_t* r, const AppliedLimit* applied, Group* group) {
    ngx_str_t key;
    if (ngx_http_complex_value(r, &applied->zone->key, &key) != NGX_OK) {
        return false;
    }
    if (key.len == 0) {
        return true;
    }
    const Policy* policy = policy_of(r, *applied);
    if (policy == nullptr) {
        fail(group, *applied->zone);
        return true;
    }
    if (policy->rates.size == 0) {
        return true;
    }
    Table* table = applied->zone->table;
    Limit& limit = group->limits[group->count];
    limit.table = table;
    limit.policy = policy;
    limit.client = table->hash(view(key));
    limit.cost = cost_of(r, *applied);
    group->keys[group->count] = key;
    group->applied[group->count] = applied;
    group->count++;
    return true;
}

// Collects the limits of this location that the request has not met before.
bool gather(ngx_http_request_t* r, const ngx_array_t& limits, const RequestState* state, Group* group) {
    auto** applied = static_cast<AppliedLimit**>(limits.elts);
    for (ngx_uint_t i = 0; i < limits.nelts; i++) {
        if (!was_decided(r, state, applied[i]->zone) && !gather_limit(r, applied[i], group)) {
            return false;
        }
    }
    return true;
}

// Whether a client should rather be told of `a` than of `b`.
bool binds_before(const Decision& a, const Decision& b) {
    if (a.allowed != b.allowed) {
        return !a.allowed;
    }
    if (a.allowed) {
        return a.remaining < b.remaining;
    }
    return b.retry_after != kNever && (a.retry_after == kNever || a.retry_after > b.retry_after);
}

// The entry for a zone: that of an earlier look, or a new one.
std::uint32_t entry_for(const Zone* zone, RequestState* state) {
    for (std::uint32_t i = 0; i < state->count; i++) {
        if (state->limits[i].applied->zone == zone) {
            return i;
        }
    }
    return state->count++;
}

// Adds the decisions to what is known of the request; returns the longest delay.
Micros record(Group* group, RequestState* state) {
    Micros delay = 0;
    for (std::size_t i = 0; i < group->count; i++) {
        const Limit& limit = group->limits[i];
        group->entries[i] = entry_for(group->applied[i]->zone, state);
        state->limits[group->entries[i]] = {group->applied[i], &limit.policy->rates, limit.cost,
                                            limit.decision};
        delay = ngx_max(delay, limit.decision.delay);
    }
    state->binding = 0;
    for (std::uint32_t i = 1; i < state->count; i++) {
        if (binds_before(state->limits[i].decision, state->limits[state->binding].decision)) {
            state->binding = i;
        }
    }
    return delay;
}

// Logs what the limit of this group did that binds or, if there is a delay, that makes the request wait.
void log_group(ngx_http_request_t* r, const Group& group, Micros delay, const RequestState& state) {
    for (std::size_t i = 0; i < group.count; i++) {
        if (delay != 0 ? group.limits[i].decision.delay == delay : group.entries[i] == state.binding) {
            log_decision(r, state, group.entries[i], group.keys[i]);
            return;
        }
    }
}

void go_on(ngx_http_request_t* r) {
    ngx_event_t* write = r->connection->write;
    if (write->delayed) {
        if (ngx_handle_write_event(write, 0) != NGX_OK) {
            ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        }
        return;
    }
    if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }
    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;
    ngx_http_core_run_phases(r);
}

// Lets the request sleep; a client that leaves meanwhile ends it.
ngx_int_t postpone(ngx_http_request_t* r, Micros delay) {
    ngx_event_t* write = r->connection->write;
    if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = go_on;
    write->delayed = 1;
    // A timer starts from nginx's own clock, which may be older than the decision.
    ngx_time_update();
    if (write->timer_set) {
        ngx_del_timer(write);
    }
    ngx_add_timer(write, static_cast<ngx_msec_t>((delay + 999) / 1000));
    return NGX_AGAIN;
}

ngx_int_t fail_request(ngx_http_request_t* r, const Group& group, RequestState* state) {
    state->status = Status::kError;
    if (!group.failed_closed) {
        return NGX_DECLINED;
    }
    const ngx_http_rate_limit_loc_conf_t* conf = location_conf(r);
    state->refused = !conf->dry_run;
    return state->refused ? NGX_HTTP_SERVICE_UNAVAILABLE : NGX_DECLINED;
}

ngx_int_t follow(ngx_http_request_t* r, const Group& group, Verdict verdict, Micros delay,
                 RequestState* state) {
    const ngx_http_rate_limit_loc_conf_t* conf = location_conf(r);
    if (verdict == Verdict::kRejected) {
        state->status = conf->dry_run ? Status::kRejectedDryRun : Status::kRejected;
        log_group(r, group, 0, *state);
        state->refused = !conf->dry_run;
        return state->refused ? reject(r, *state) : NGX_DECLINED;
    }
    if (delay != 0) {
        state->status = conf->dry_run ? Status::kDelayedDryRun : Status::kDelayed;
        log_group(r, group, delay, *state);
        state->waiting = !conf->dry_run;
        return state->waiting ? postpone(r, delay) : NGX_DECLINED;
    }
    state->status = group.failed ? Status::kError : Status::kPassed;
    return NGX_DECLINED;
}

ngx_int_t handle_access(ngx_http_request_t* r) {
    const ngx_http_rate_limit_loc_conf_t* conf = location_conf(r);
    if (conf->limits == nullptr || conf->limits->nelts == 0) {
        return NGX_DECLINED;
    }
    RequestState* state = request_state(r);
    if (state != nullptr && (state->refused || state->waiting)) {
        state->waiting = false;
        return NGX_DECLINED;
    }
    Group group;
    if (!gather(r, *conf->limits, state, &group)) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    state = make_request_state(r, group.count);
    if (state == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    if (group.failed_closed || (group.failed && group.count == 0)) {
        return fail_request(r, group, state);
    }
    if (group.count == 0) {
        return NGX_DECLINED;
    }
    const Micros now = wall_clock();
    const Verdict verdict = check(group.limits, group.count, now, zone_host());
    if (verdict == Verdict::kBusy) {
        for (std::size_t i = 0; i < group.count; i++) {
            fail(&group, *group.applied[i]->zone);
        }
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0, "no slot is free for a client of zone \"%V\"",
                      &group.applied[0]->zone->name);
        return fail_request(r, group, state);
    }
    state->decided_at = now;
    state->headers = conf->headers;
    const Micros delay = record(&group, state);
    return follow(r, group, verdict, delay, state);
}

}  // namespace
}  // namespace rate_limit

extern "C" ngx_int_t ngx_http_rate_limit_init(ngx_conf_t* cf) {
    if (!rate_limit::resolve_configuration(cf)) {
        return NGX_ERROR;
    }
    auto* cmcf =
        static_cast<ngx_http_core_main_conf_t*>(ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module));
    auto* handler =
        static_cast<ngx_http_handler_pt*>(ngx_array_push(&cmcf->phases[NGX_HTTP_ACCESS_PHASE].handlers));
    if (handler == nullptr) {
        return NGX_ERROR;
    }
    *handler = rate_limit::handle_access;
    rate_limit::add_header_filter();
    return NGX_OK;
}
