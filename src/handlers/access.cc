// The handlers of both phases: collect the limits of a request, have the store decide them, and act on the
// decision.
#include "handlers/access.h"

#include <algorithm>

#include "handlers/delay.h"
#include "handlers/effective_policy.h"
#include "handlers/empty_key.h"
#include "handlers/shadow.h"
#include "nginx/clock.h"
#include "nginx/suspend.h"
#include "request/counters.h"
#include "request/log.h"
#include "request/rejection.h"
#include "request/request_reader.h"

namespace rate_limit {
namespace {

using Phase = ngx_http_rate_limit_phase_t;

bool is_precontent(const Phase& phase) { return phase.phase == NGX_HTTP_PRECONTENT_PHASE; }

// Whether a zone has charged or rejected the request already, or could not decide it. Outside of a dry run, a
// rejection in a dry run does not count.
bool was_decided(ngx_http_request_t* r, const RequestState& state, const Zone* zone) {
    const bool tried = state.status == Status::kRejectedDryRun && !location_conf(r)->dry_run;
    for (std::uint32_t i = 0; i < state.count; i++) {
        const Limit& limit = state.limits[i];
        if (limit.zone == zone && limit.cost != 0 && (limit.charged || !tried)) {
            return true;
        }
    }
    return has_zone(state.left_out, zone);
}

// The result of collecting a limit; for all limits of a location, the highest of their results.
enum class Collected : std::uint8_t {
    kNothing,   // the limit does not apply, or fails open
    kLimit,     // there is a limit to decide
    kClosed,    // a limit without a valid rate fails closed
    kNoMemory,  // memory is exhausted, or a variable could not be evaluated
};

// Counts a limit that does not apply, because its key is empty or its rate is `off`. Counts the limit once:
// an internal redirect may lead to the same limit again.
[[gnu::noinline]] Collected bypass(ngx_http_request_t* r, const AppliedLimit& applied, Bypass why,
                                   RequestState* state) {
    const Zone& zone = *applied.zone;
    const bool watched = why == Bypass::kEmptyKey && !zone.keys_judged;
    if (!(watched || is_observed(r)) || !add_zone(r, &zone, &state->bypassed)) {
        return Collected::kNothing;
    }
    if (is_observed(r)) {
        count_bypass(zone, why);
    }
    if (watched) {
        note_empty_key(r, applied);
    }
    return Collected::kNothing;
}

// Counts a limit that cannot be decided, because it has no valid rate.
[[gnu::noinline]] Collected leave_out(ngx_http_request_t* r, const Zone& zone, RequestState* state) {
    if (is_observed(r)) {
        count_reason(zone, kNoRate);
    }
    state->undecided = true;
    return zone.on_error == OnError::kClosed ? Collected::kClosed : Collected::kNothing;
}

[[gnu::always_inline]] inline Collected collect_limit(ngx_http_request_t* r, const AppliedLimit& applied,
                                                      RequestState* state, Limit* limit) {
    ngx_str_t key;
    Zone* zone = applied.zone;
    if (!zone_key(r, *zone, &key)) {
        return Collected::kNoMemory;
    }
    if (key.len == 0) {
        return bypass(r, applied, Bypass::kEmptyKey, state);
    }
    note_key(zone);
    const Policy* policy = policy_of(r, applied);
    if (policy == nullptr) {
        return leave_out(r, *zone, state);
    }
    if (policy->rates.size == 0) {
        return bypass(r, applied, Bypass::kRateOff, state);
    }
    make_limit(zone, *policy, view(key), cost_of(r, applied), limit);
    limit->is_single = applied.single && policy == &applied.policy;
    limit->tag = &applied;
    return Collected::kLimit;
}

// Records a zone that the client is not told of. False if memory is exhausted.
bool hide(ngx_http_request_t* r, const Zone* zone, RequestState* state) {
    return has_zone(state->hidden, zone) || add_zone(r, zone, &state->hidden);
}

// Collects the limits of a phase that have not decided the request yet.
Collected collect(ngx_http_request_t* r, const ngx_array_t& limits, RequestState* state) {
    auto** applied = static_cast<AppliedLimit**>(limits.elts);
    Collected all = Collected::kNothing;
    for (ngx_uint_t i = 0; i < limits.nelts && all != Collected::kNoMemory; i++) {
        if (was_decided(r, *state, applied[i]->zone)) {
            continue;
        }
        Limit* limit = &state->limits[state->count + state->deciding];
        Collected one = collect_limit(r, *applied[i], state, limit);
        if (one == Collected::kLimit && applied[i]->hidden && !hide(r, applied[i]->zone, state)) {
            one = Collected::kNoMemory;
        }
        if (one == Collected::kLimit) {
            state->deciding++;
            if (is_debugged(r)) {
                debug_limit(r, *limit);
            }
        }
        all = std::max(all, one);
    }
    return all;
}

// Whether `a` binds rather than `b`.
bool binds_before(const Decision& a, const Decision& b) {
    if (a.allowed != b.allowed) {
        return !a.allowed;
    }
    if (a.allowed) {
        return a.remaining < b.remaining;
    }
    return b.retry_after != kNever && (a.retry_after == kNever || a.retry_after > b.retry_after);
}

// The index for the decision of a zone: the index of an earlier decision of this zone, or a new index.
std::uint32_t index_for(const StoreZone* zone, RequestState* state) {
    for (std::uint32_t i = 0; i < state->count; i++) {
        if (state->limits[i].zone == zone) {
            return i;
        }
    }
    return state->count++;
}

// Corrects the decisions of limits that would have admitted a request which another limit rejects: the
// request is not charged, so its cost remains. Only needed if such a limit can be shown. The reset time is
// not moved forward, unless the whole quota is available.
void restore_remaining(RequestState* state) {
    for (std::uint32_t i = state->count; i < state->count + state->deciding; i++) {
        Limit& limit = state->limits[i];
        Decision& decision = limit.decision;
        if (limit.decided_by != DecidedBy::kNobody && decision.allowed && !limit.policy->count_all) {
            decision.remaining = std::min(decision.remaining + limit.cost, decision.limit);
            decision.reset_after = decision.remaining == decision.limit ? 0 : decision.reset_after;
        }
    }
}

// Adds the limits that were just decided to those that were decided before, and finds the binding limit.
// Returns the index of the limit with the longest delay, or state->count if no limit was decided.
std::uint32_t add_decided(RequestState* state) {
    const Limit* decided = &state->limits[state->count];
    std::uint32_t slowest = state->count;
    const bool only_one =
        state->deciding == 1 && state->count == 0 && decided->decided_by != DecidedBy::kNobody;
    const Limit* const end = decided + state->deciding;
    state->deciding = 0;
    state->binding = 0;
    if (only_one) {
        state->count = 1;
        return 0;
    }
    for (; decided != end; decided++) {
        if (decided->decided_by == DecidedBy::kNobody) {
            continue;
        }
        const std::uint32_t index = index_for(decided->zone, state);
        if (&state->limits[index] != decided) {
            state->limits[index] = *decided;
        }
        slowest = slowest >= state->count ||
                          state->limits[slowest].decision.delay < state->limits[index].decision.delay
                      ? index
                      : slowest;
    }
    for (std::uint32_t i = 1; i < state->count; i++) {
        if (binds_before(state->limits[i].decision, state->limits[state->binding].decision)) {
            state->binding = i;
        }
    }
    return slowest;
}

// Finds the limit that binds among those that the client is told of. Without such a limit, there are no
// headers.
void find_shown(RequestState* state) {
    if (state->hidden == nullptr) {
        state->shown = state->binding;
        return;
    }
    std::uint32_t shown = state->count;
    for (std::uint32_t i = 0; i < state->count; i++) {
        if (is_shown(*state, state->limits[i]) &&
            (shown == state->count ||
             binds_before(state->limits[i].decision, state->limits[shown].decision))) {
            shown = i;
        }
    }
    if (shown == state->count) {
        shown = 0;
        state->headers = NGX_HTTP_RATE_LIMIT_HEADERS_OFF;
    }
    state->shown = shown;
}

// The status of a request that continues after the limits of a phase. The precontent phase does not hide what
// the access phase has shown. The status of a dry run does not count where limits apply.
Status combined_status(ngx_http_request_t* r, const Phase& phase, Status status, const RequestState& state) {
    const bool tried = is_dry_run(state.status) && !location_conf(r)->dry_run;
    return is_precontent(phase) && !tried ? std::max(state.status, status) : status;
}

// Refuses the request: what an earlier phase has charged is given back. The access phase of a location is the
// first one, and leaves charges of locations before an internal redirect as they are.
void refuse_request(ngx_http_request_t* r, const Phase& phase, Status status, RequestState* state) {
    state->status = status;
    state->flow = Flow::kRefused;
    if (is_precontent(phase)) {
        for (std::uint32_t i = 0; i < state->count; i++) {
            const Limit& limit = state->limits[i];
            if (limit.charged) {
                zone_connect_corrector(static_cast<const AppliedLimit*>(limit.tag)->zone);
                if (is_debugged(r)) {
                    debug_refunded(r, limit);
                }
            }
        }
        refund(state->limits, state->count, this_process(), wall_clock);
    }
}

ngx_int_t fail_request(ngx_http_request_t* r, const Phase& phase, bool closed, RequestState* state) {
    const bool refused = closed && !location_conf(r)->dry_run;
    state->deciding = 0;
    check_shadows(r, phase, state, !closed);
    if (refused) {
        refuse_request(r, phase, Status::kError, state);
        return answer_unavailable(r);
    }
    state->flow = Flow::kFree;
    state->status = combined_status(r, phase, Status::kError, *state);
    return NGX_DECLINED;
}

// Rejects the request by its binding limit, except in a dry run.
ngx_int_t reject_request(ngx_http_request_t* r, const Phase& phase, RequestState* state) {
    const bool dry_run = location_conf(r)->dry_run != 0;
    const Status status = dry_run ? Status::kRejectedDryRun : Status::kRejected;
    log_decision(r, status, state->limits[state->binding]);
    if (dry_run) {
        state->status = status;
        return NGX_DECLINED;
    }
    refuse_request(r, phase, status, state);
    return reject(r, *state);
}

// Delays the request by the delay of this limit, except in a dry run.
ngx_int_t slow_down(ngx_http_request_t* r, const Phase& phase, const Limit& limit, RequestState* state) {
    const bool dry_run = location_conf(r)->dry_run != 0;
    const Status status = dry_run ? Status::kDelayedDryRun : Status::kDelayed;
    log_decision(r, status, limit);
    state->status = combined_status(r, phase, status, *state);
    return dry_run ? NGX_DECLINED : delay_request(r, limit.decision.delay, state);
}

// Records the limits that could not be decided and fail open: an internal redirect does not check them again.
void note_undecided(ngx_http_request_t* r, RequestState* state) {
    for (std::uint32_t i = state->count; i < state->count + state->deciding; i++) {
        const Limit& limit = state->limits[i];
        if (limit.decided_by == DecidedBy::kNobody) {
            state->undecided = true;
            add_zone(r, &zone_of(limit), &state->left_out);
        }
    }
}

void log_full_zones(ngx_http_request_t* r, const RequestState& state) {
    for (std::uint32_t i = state.count; i < state.count + state.deciding; i++) {
        if (state.limits[i].reason == kNoSlot) {
            ngx_log_error(NGX_LOG_ERR, r->connection->log, 0, "no slot is free for a client of zone \"%V\"",
                          &zone_of(state.limits[i]).name);
            return;
        }
    }
}

// Acts on the outcome of the limits that were being decided.
ngx_int_t conclude(ngx_http_request_t* r, const Phase& phase, const RequestOutcome& outcome,
                   RequestState* state) {
    const ngx_http_rate_limit_loc_conf_t* conf = location_conf(r);
    const bool rejected = outcome.progress == Progress::kRejected;
    const Limit* limits = &state->limits[state->count];
    if (is_debugged(r)) {
        std::for_each(limits, limits + state->deciding,
                      [r](const Limit& limit) { debug_decision(r, limit); });
    }
    if (is_observed(r)) {
        count_limits(limits, state->deciding, outcome, conf->dry_run != 0);
    }
    if (limits->decided_by == DecidedBy::kNobody || state->deciding != 1) {
        log_full_zones(r, *state);
        if (!rejected) {
            note_undecided(r, state);
        }
    }
    if (outcome.error != redis::Error::kNone && state->error == redis::Error::kNone) {
        state->error = outcome.error;
    }
    if (outcome.progress == Progress::kRefused) {
        return fail_request(r, phase, true, state);
    }
    state->headers = static_cast<std::uint32_t>(conf->headers);
    if (rejected && state->hidden != nullptr) {
        restore_remaining(state);
    }
    const std::uint32_t slowest = add_decided(state);
    find_shown(state);
    check_shadows(r, phase, state, !rejected);
    if (rejected) {
        return reject_request(r, phase, state);
    }
    if (slowest < state->count && state->limits[slowest].decision.delay != 0) {
        return slow_down(r, phase, state->limits[slowest], state);
    }
    const Status status = state->undecided ? Status::kError : Status::kPassed;
    state->status = combined_status(r, phase, status, *state);
    return NGX_DECLINED;
}

// Detaches the check in flight from a request that has ended, runs its post_action or was redirected. The
// limits of the check are still decided.
void leave_check(ngx_http_request_t* r, RequestState* state) {
    if (state->flow != Flow::kAsking) {
        return;
    }
    state->flow = Flow::kFree;
    state->deciding = 0;
    if (state->check != nullptr && state->check->progress() == Progress::kWaiting) {
        ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                       "rate_limit: the request ends while Redis decides");
        const RequestCheck::Gone count = location_conf(r)->dry_run != 0 ? count_left_dry_run : count_left;
        state->check->leave(is_observed(r) ? count : nullptr);
    }
}

void leave_check(void* data) {
    auto* r = static_cast<ngx_http_request_t*>(data);
    leave_check(r, request_state(r));
}

void wake(RequestCheck* check) {
    auto* r = static_cast<ngx_http_request_t*>(check->data);
    resume(r, [r] { run_phases_again(r); });
}

void* allocate(void* r, std::size_t size) {
    return ngx_palloc(static_cast<ngx_http_request_t*>(r)->pool, size);
}

constexpr Waiter kWaiter = {allocate, wake};

ngx_int_t wait_for_redis(ngx_http_request_t* r, RequestCheck* check, RequestState* state) {
    state->flow = Flow::kAsking;
    state->check = check;
    if (suspend(r, leave_check, r) == nullptr) {
        leave_check(r, state);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    return NGX_AGAIN;
}

// Handles a phase with nothing to decide: no limit applies, all were decided in earlier locations, or
// collecting a limit failed.
[[gnu::noinline]] ngx_int_t decide_nothing(ngx_http_request_t* r, const Phase& phase, Collected collected,
                                           RequestState* state) {
    if (collected == Collected::kNoMemory) {
        state->undecided = false;
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    if (collected == Collected::kClosed || state->undecided) {
        return fail_request(r, phase, collected == Collected::kClosed, state);
    }
    if (phase.limits != nullptr && state->status == Status::kNone) {
        state->status = Status::kBypassed;
    }
    check_shadows(r, phase, state, true);
    return NGX_DECLINED;
}

// Acts on any outcome, including kWaiting and kNoMemory.
[[gnu::noinline]] ngx_int_t act_on(ngx_http_request_t* r, const Phase& phase, const RequestOutcome& outcome,
                                   RequestState* state) {
    if (outcome.progress == Progress::kWaiting) {
        return wait_for_redis(r, outcome.check, state);
    }
    return outcome.progress != Progress::kNoMemory ? conclude(r, phase, outcome, state)
                                                   : NGX_HTTP_INTERNAL_SERVER_ERROR;
}

// Decides the only limit of the access phase, for a request that no earlier location has limited.
[[gnu::always_inline]] inline ngx_int_t limit_alone(ngx_http_request_t* r,
                                                    const ngx_http_rate_limit_loc_conf_t& conf,
                                                    RequestState* state) {
    state = state != nullptr ? state : new_request_state(r->main);
    if (state == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    Limit* limit = state->limits;
    const Collected collected = collect_limit(r, *static_cast<AppliedLimit*>(conf.lone_limit), state, limit);
    if (collected != Collected::kLimit) {
        return decide_nothing(r, conf.access, collected, state);
    }
    const RequestOutcome outcome = decide_one(limit, this_process(), wall_clock, kWaiter, r);
    if (outcome.progress > Progress::kRejected || outcome.error != redis::Error::kNone ||
        limit->decided_by == DecidedBy::kNobody) {
        state->deciding = 1;
        return act_on(r, conf.access, outcome, state);
    }
    state->headers = static_cast<std::uint32_t>(conf.headers);
    state->count = 1;
    if (is_observed(r)) {
        count_limit(*limit, outcome, conf.dry_run != 0);
    }
    if (outcome.progress == Progress::kRejected) {
        return reject_request(r, conf.access, state);
    }
    if (limit->decision.delay != 0) {
        return slow_down(r, conf.access, *limit, state);
    }
    state->status = Status::kPassed;
    return NGX_DECLINED;
}

// Decides all limits of a phase that have not decided the request yet.
[[gnu::noinline]] ngx_int_t limit_request(ngx_http_request_t* r, const Phase& phase) {
    const std::size_t most = phase.limits != nullptr ? phase.limits->nelts : 0;
    RequestState* state = make_request_state(r, most);
    if (state == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    state->deciding = 0;
    state->undecided = false;
    const Collected collected = most != 0 ? collect(r, *phase.limits, state) : Collected::kNothing;
    if (collected != Collected::kLimit) {
        return decide_nothing(r, phase, collected, state);
    }
    Limit* limits = &state->limits[state->count];
    return act_on(r, phase, decide(limits, state->deciding, this_process(), wall_clock, kWaiter, r), state);
}

// Continues a request that was delayed, was refused, or waited for Redis. nginx calls the handler that
// delayed or suspended the request, unless the request was redirected meanwhile.
[[gnu::noinline]] ngx_int_t go_on(ngx_http_request_t* r, const Phase& phase, RequestState* state) {
    if (state->flow == Flow::kAsking && state->check->progress() != Progress::kWaiting) {
        state->flow = Flow::kFree;
        return conclude(r, phase, state->check->outcome(), state);
    }
    if (state->flow == Flow::kAsking) {
        leave_check(r, state);
        return limit_request(r, phase);
    }
    if (state->flow == Flow::kDelayed) {
        state->flow = Flow::kFree;
    }
    return NGX_DECLINED;
}

// Handles a phase that has limits or shadows.
[[gnu::noinline]] ngx_int_t handle_phase(ngx_http_request_t* r, const Phase& phase) {
    RequestState* state = request_state(r);
    return state != nullptr && state->flow != Flow::kFree ? go_on(r, phase, state) : limit_request(r, phase);
}

// Handles a location without limits and shadows in the access phase. The API also suspends requests. A check
// that an earlier location started must not resume them.
ngx_int_t handle_no_limits(ngx_http_request_t* r, const ngx_http_rate_limit_loc_conf_t& conf) {
    RequestState* state = conf.api != nullptr ? request_state(r) : nullptr;
    if (state != nullptr) {
        leave_check(r, state);
    }
    return NGX_DECLINED;
}

}  // namespace

ngx_int_t handle_access(ngx_http_request_t* r) {
    const ngx_http_rate_limit_loc_conf_t* conf = location_conf(r);
    if (conf->requests != nullptr) {
        const ngx_int_t rc = read_request_body(r, *conf);
        if (rc != NGX_DECLINED) {
            return rc;
        }
    }
    if (conf->lone_limit != nullptr && !is_debugged(r)) {
        RequestState* state = request_state(r);
        if (state == nullptr ||
            (state->status == Status::kNone && state->count == 0 && state->flow == Flow::kFree)) {
            return limit_alone(r, *conf, state);
        }
    } else if (conf->access.limits == nullptr && conf->access.shadows == nullptr) {
        return handle_no_limits(r, *conf);
    }
    return handle_phase(r, conf->access);
}

ngx_int_t handle_precontent(ngx_http_request_t* r) {
    const Phase* phase = location_conf(r)->precontent;
    // Unlike the access phase, this phase is also for subrequests.
    return phase == nullptr || r != r->main ? NGX_DECLINED : handle_phase(r, *phase);
}

}  // namespace rate_limit
