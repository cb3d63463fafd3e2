// The handler of the access phase: who the client is, what it may do, and what follows from it.
#include "nginx/access.h"

#include <algorithm>

#include "nginx/clock.h"
#include "nginx/counters.h"
#include "nginx/effective_policy.h"
#include "nginx/log.h"
#include "nginx/rejection.h"
#include "nginx/shadow.h"

namespace rate_limit {

// One of a request's limits while they are being decided.
struct Item {
    const AppliedLimit* applied;
    ngx_str_t key;
    const Policy* policy;
    std::uint32_t cost;
    std::uint32_t entry;  // its index among the request's decided limits
    DecidedBy decided_by;
    Reason reason;  // why not whom the zone asks first
    Decision decision;
};

// The limits of a request that waits for Redis.
struct PendingCheck {
    RequestCheck group;
    std::size_t count;
    bool failed;  // a limit could not be evaluated and is left out
    Item* items;
    Limit* limits;
};

namespace {

struct Items {
    std::size_t count = 0;
    std::size_t bypassed = 0;    // limits that do not apply to the request
    bool batcher = false;        // some are in Redis
    bool failed = false;         // a limit could not be evaluated and is left out
    bool failed_closed = false;  // and must not be left out
    Item list[kMaxLimits];
    struct {
        const Zone* zone;
        Bypass why;
    } bypasses[kMaxLimits];
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
    const ngx_array_t* left_out = state != nullptr ? state->left_out : nullptr;
    const auto* zones = left_out != nullptr ? static_cast<const Zone**>(left_out->elts) : nullptr;
    return left_out != nullptr && std::find(zones, zones + left_out->nelts, zone) != zones + left_out->nelts;
}

void fail(Items* items, const Zone& zone) {
    items->failed = true;
    items->failed_closed = items->failed_closed || zone.on_error == OnError::kClosed;
}

void bypass(Items* items, const Zone* zone, Bypass why) { items->bypasses[items->bypassed++] = {zone, why}; }

bool gather_limit(ngx_http_request_t* r, const AppliedLimit* applied, Items* items) {
    ngx_str_t key;
    if (!zone_key(r, *applied->zone, &key)) {
        return false;
    }
    if (key.len == 0) {
        bypass(items, applied->zone, Bypass::kEmptyKey);
        return true;
    }
    const Policy* policy = policy_of(r, *applied);
    if (policy == nullptr) {
        if (is_observed(r)) {
            count_reason(*applied->zone, kNoRate);
        }
        fail(items, *applied->zone);
        return true;
    }
    if (policy->rates.size == 0) {
        bypass(items, applied->zone, Bypass::kRateOff);
        return true;
    }
    Item& item = items->list[items->count++];
    item.applied = applied;
    item.key = key;
    item.policy = policy;
    item.cost = cost_of(r, *applied);
    item.decided_by = DecidedBy::kMemory;
    item.reason = kNoReason;
    items->batcher = items->batcher || asks_redis(*applied->zone);
    return true;
}

// Collects the limits of this location that the request has not met before.
bool gather(ngx_http_request_t* r, const ngx_array_t& limits, const RequestState* state, Items* items) {
    auto** applied = static_cast<AppliedLimit**>(limits.elts);
    for (ngx_uint_t i = 0; i < limits.nelts; i++) {
        if (!was_decided(r, state, applied[i]->zone) && !gather_limit(r, applied[i], items)) {
            return false;
        }
    }
    return true;
}

// Counts the limits that do not apply, once for each request: an internal redirect may ask for them again.
void count_bypasses(ngx_http_request_t* r, const Items& items, RequestState* state) {
    for (std::size_t i = 0; i < items.bypassed && is_observed(r); i++) {
        if (add_zone(r, items.bypasses[i].zone, &state->bypassed)) {
            count_bypass(*items.bypasses[i].zone, items.bypasses[i].why);
        }
    }
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
Micros record(Item* items, std::size_t count, RequestState* state) {
    Micros delay = 0;
    for (std::size_t i = 0; i < count; i++) {
        Item& item = items[i];
        item.entry = state->room;
        if (item.decided_by == DecidedBy::kNobody) {
            continue;
        }
        item.entry = entry_for(item.applied->zone, state);
        state->limits[item.entry] = {item.applied, &item.policy->rates, item.cost, item.decided_by,
                                     item.decision};
        delay = ngx_max(delay, item.decision.delay);
    }
    state->binding = 0;
    for (std::uint32_t i = 1; i < state->count; i++) {
        if (binds_before(state->limits[i].decision, state->limits[state->binding].decision)) {
            state->binding = i;
        }
    }
    return delay;
}

// Logs what the limit of these did that binds or, if there is a delay, that makes the request wait.
void log_items(ngx_http_request_t* r, const Item* items, std::size_t count, Micros delay,
               const RequestState& state) {
    for (std::size_t i = 0; i < count; i++) {
        const Item& item = items[i];
        if (item.decided_by != DecidedBy::kNobody &&
            (delay != 0 ? item.decision.delay == delay : item.entry == state.binding)) {
            log_decision(r, state, item.entry, item.key);
            return;
        }
    }
}

void go_on(ngx_http_request_t* r) {
    ngx_event_t* write = r->connection->write;
    if (end_if_cancelled(r)) {
        return;
    }
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

ngx_int_t fail_request(ngx_http_request_t* r, bool closed, RequestState* state) {
    state->status = Status::kError;
    state->refused = closed && !location_conf(r)->dry_run;
    check_shadows(r, state, !closed);
    return state->refused ? NGX_HTTP_SERVICE_UNAVAILABLE : NGX_DECLINED;
}

// Turns the request away, unless it is only to be seen what that would do.
ngx_int_t turn_away(ngx_http_request_t* r, RequestState* state) {
    state->refused = !location_conf(r)->dry_run;
    return state->refused ? reject(r, *state) : NGX_DECLINED;
}

// Counts a request that has ended while it was delayed. It stays charged to all its limits.
void count_if_aborted(void* data) {
    const auto* state = static_cast<RequestState*>(data);
    for (std::uint32_t i = 0; state->waiting && i < state->count; i++) {
        count_aborted(*state->limits[i].applied->zone);
    }
}

ngx_int_t let_wait(ngx_http_request_t* r, Micros delay, RequestState* state) {
    state->waiting = !location_conf(r)->dry_run;
    if (!state->waiting) {
        return NGX_DECLINED;
    }
    if (is_observed(r)) {
        ngx_http_cleanup_t* cleanup = ngx_http_cleanup_add(r, 0);
        if (cleanup == nullptr) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
        cleanup->handler = count_if_aborted;
        cleanup->data = state;
    }
    return postpone(r, delay);
}

Status status_of(const ngx_http_rate_limit_loc_conf_t& conf, bool rejected) {
    if (rejected) {
        return conf.dry_run ? Status::kRejectedDryRun : Status::kRejected;
    }
    return conf.dry_run ? Status::kDelayedDryRun : Status::kDelayed;
}

// What follows from the decisions.
ngx_int_t follow(ngx_http_request_t* r, Item* items, std::size_t count, bool rejected, bool failed,
                 RequestState* state) {
    const ngx_http_rate_limit_loc_conf_t* conf = location_conf(r);
    state->headers = conf->headers;
    const Micros delay = record(items, count, state);
    check_shadows(r, state, !rejected);
    if (rejected || delay != 0) {
        state->status = status_of(*conf, rejected);
        log_items(r, items, count, rejected ? 0 : delay, *state);
        return rejected ? turn_away(r, state) : let_wait(r, delay, state);
    }
    state->status = failed ? Status::kError : Status::kPassed;
    return NGX_DECLINED;
}

void count_items(ngx_http_request_t* r, const Item* items, std::size_t count, bool admitted, Micros took) {
    for (std::size_t i = 0; i < count; i++) {
        const Item& item = items[i];
        count_limit({item.applied->zone, view(item.key), item.decided_by, item.reason, &item.decision},
                    admitted, location_conf(r)->dry_run != 0, took);
    }
}

ngx_int_t decide_from_memory(ngx_http_request_t* r, Items* items, RequestState* state) {
    TableLimits limits;
    for (std::size_t i = 0; i < items->count; i++) {
        const Item& item = items->list[i];
        limits.add(item.applied->zone->table, *item.policy, view(item.key), item.cost);
    }
    const Micros now = wall_clock();
    const Verdict verdict = check(limits.data(), limits.size(), now, this_process());
    if (verdict == Verdict::kBusy) {
        for (std::size_t i = 0; i < items->count; i++) {
            fail(items, *items->list[i].applied->zone);
            if (is_observed(r)) {
                count_reason(*items->list[i].applied->zone, kNoSlot);
            }
        }
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0, "no slot is free for a client of zone \"%V\"",
                      &items->list[0].applied->zone->name);
        return fail_request(r, items->failed_closed, state);
    }
    for (std::size_t i = 0; i < items->count; i++) {
        items->list[i].decision = limits[i].decision;
    }
    state->decided_at = now;
    if (is_observed(r)) {
        count_items(r, items->list, items->count, verdict != Verdict::kRejected, wall_clock() - now);
    }
    return follow(r, items->list, items->count, verdict == Verdict::kRejected, items->failed, state);
}

// Remembers that a zone could not be decided: an internal redirect does not ask for it again.
void leave_out(ngx_http_request_t* r, const Zone& zone, RequestState* state) {
    if (state->left_out == nullptr) {
        state->left_out = ngx_array_create(r->main->pool, 1, sizeof(Zone*));
    }
    auto** slot =
        state->left_out != nullptr ? static_cast<const Zone**>(ngx_array_push(state->left_out)) : nullptr;
    if (slot != nullptr) {
        *slot = &zone;
    }
}

// Follows from what a group was found to be, however long that took.
ngx_int_t conclude(ngx_http_request_t* r, RequestState* state) {
    PendingCheck* pending = state->pending;
    state->pending = nullptr;
    const RequestCheck& group = pending->group;
    state->error = state->error == redis::Error::kNone ? group.error() : state->error;
    state->decided_at = group.decided_at();
    for (std::size_t i = 0; i < pending->count; i++) {
        pending->items[i].decided_by = pending->limits[i].decided_by;
        pending->items[i].reason = pending->limits[i].reason;
        pending->items[i].decision = pending->limits[i].decision;
        const bool left_out = pending->limits[i].decided_by == DecidedBy::kNobody;
        if (left_out && group.progress() == Progress::kAdmitted) {
            pending->failed = true;
            leave_out(r, *pending->items[i].applied->zone, state);
        }
    }
    if (is_observed(r)) {
        count_items(r, pending->items, pending->count, group.progress() == Progress::kAdmitted,
                    this_process().clock() - group.started_at());
    }
    if (group.progress() == Progress::kRefused) {
        return fail_request(r, true, state);
    }
    return follow(r, pending->items, pending->count, group.progress() == Progress::kRejected, pending->failed,
                  state);
}

// The write handler while a request waits for Redis: ends the request if its client has cancelled it.
void sleep_on(ngx_http_request_t* r) { end_if_cancelled(r); }

// Redis has answered, or will not: the request goes on where it was, if it is still there. A client that
// leaves may have sent it elsewhere meanwhile, to its post_action.
void wake_request(RequestCheck* group) {
    auto* r = static_cast<ngx_http_request_t*>(group->data);
    if (r->write_event_handler != sleep_on) {
        return;
    }
    ngx_connection_t* c = r->connection;
    ngx_http_set_log_request(c->log, r);
    if (ngx_handle_read_event(c->read, 0) == NGX_OK) {
        r->read_event_handler = ngx_http_block_reading;
        r->write_event_handler = ngx_http_core_run_phases;
        ngx_http_core_run_phases(r);
    } else {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
    }
    ngx_http_run_posted_requests(c);
}

// Counts a request whose client had gone before it was decided.
template <bool kDryRun>
void count_gone(const RequestCheck& group) {
    for (const Limit& limit : group) {
        const auto* zone = static_cast<const Zone*>(limit.data);
        count_limit({zone, limit.client, limit.decided_by, limit.reason, &limit.decision, limit.is_short},
                    group.progress() == Progress::kAdmitted, kDryRun,
                    this_process().clock() - group.started_at());
        count_aborted(*zone);
    }
}

// The request has gone, or goes elsewhere: what it asked for is decided all the same.
void leave_group(ngx_http_request_t* r, RequestCheck* group) {
    if (group->progress() != Progress::kWaiting) {
        return;
    }
    const RequestCheck::Gone count = location_conf(r)->dry_run != 0 ? count_gone<true> : count_gone<false>;
    group->leave(is_observed(r) ? count : nullptr);
}

void leave_group(void* group) {
    leave_group(static_cast<ngx_http_request_t*>(static_cast<RequestCheck*>(group)->data),
                static_cast<RequestCheck*>(group));
}

// A group that may have to wait, in the memory of the request; null if there is none.
PendingCheck* make_pending(ngx_http_request_t* r, const Items& items) {
    const std::size_t size = items.count * (sizeof(Item) + sizeof(Limit) + sizeof(BatchedLimit));
    auto* pending = static_cast<PendingCheck*>(ngx_palloc(r->pool, sizeof(PendingCheck) + size));
    if (pending == nullptr) {
        return nullptr;
    }
    pending->items = reinterpret_cast<Item*>(pending + 1);
    pending->limits = reinterpret_cast<Limit*>(pending->items + items.count);
    auto* room = reinterpret_cast<BatchedLimit*>(pending->limits + items.count);
    pending->count = items.count;
    pending->failed = items.failed;
    for (std::size_t i = 0; i < items.count; i++) {
        const Item& item = items.list[i];
        const Zone& zone = *item.applied->zone;
        CheckBatcher* batcher = asks_redis(zone) ? redis_batcher(zone.redis) : nullptr;
        if (asks_redis(zone) && batcher == nullptr) {
            return nullptr;
        }
        pending->items[i] = item;
        const Membership* membership = batcher != nullptr ? zone.redis->membership() : nullptr;
        pending->limits[i] = {view(zone.name),
                              view(item.key),
                              item.policy,
                              &zone.layout,
                              item.cost,
                              zone.table,
                              batcher,
                              membership,
                              zone.denials,
                              zone.deny_for,
                              zone.on_error,
                              DecidedBy::kNobody,
                              {}};
        pending->limits[i].data = item.applied->zone;
    }
    new (&pending->group)
        RequestCheck(pending->limits, room, items.count, this_process(), wall_clock, wake_request);
    pending->group.data = r;
    return pending;
}

// Lets the request sleep until Redis has answered; a client that leaves meanwhile ends it.
ngx_int_t wait_for_answer(ngx_http_request_t* r, PendingCheck* pending) {
    ngx_http_cleanup_t* cleanup = ngx_http_cleanup_add(r, 0);
    if (cleanup == nullptr || ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
        leave_group(r, &pending->group);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    cleanup->handler = leave_group;
    cleanup->data = &pending->group;
    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = sleep_on;
    return NGX_AGAIN;
}

ngx_int_t decide_with_redis(ngx_http_request_t* r, const Items& items, RequestState* state, bool undenied) {
    state->pending = make_pending(r, items);
    if (state->pending == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    return state->pending->group.start(undenied) == Progress::kWaiting ? wait_for_answer(r, state->pending)
                                                                       : conclude(r, state);
}

// Decides all limits of this location together, or goes on with a request that was here before.
ngx_int_t decide_together(ngx_http_request_t* r) {
    const ngx_http_rate_limit_loc_conf_t* conf = location_conf(r);
    const bool limited = conf->limits != nullptr && conf->limits->nelts != 0;
    RequestState* state = request_state(r);
    if (state != nullptr && state->pending != nullptr) {
        if (state->pending->group.progress() != Progress::kWaiting) {
            return conclude(r, state);
        }
        leave_group(r, &state->pending->group);
        state->pending = nullptr;
    }
    if (state != nullptr && (state->refused || state->waiting)) {
        state->waiting = false;
        return NGX_DECLINED;
    }
    Items items;
    if (limited && !gather(r, *conf->limits, state, &items)) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    state = make_request_state(r, items.count);
    if (state == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    count_bypasses(r, items, state);
    if (limited && state->status == Status::kNone) {
        state->status = Status::kBypassed;
    }
    if (items.failed_closed || (items.failed && items.count == 0)) {
        return fail_request(r, items.failed_closed, state);
    }
    if (items.count == 0) {
        check_shadows(r, state, true);
        return NGX_DECLINED;
    }
    return items.batcher ? decide_with_redis(r, items, state, false) : decide_from_memory(r, &items, state);
}

// The only limit of a request is decided, which began at `since` by that clock.
[[gnu::always_inline]] inline ngx_int_t conclude_alone(ngx_http_request_t* r, const ngx_str_t& key,
                                                       Micros since, Micros (*clock)(), RequestState* state) {
    const ngx_http_rate_limit_loc_conf_t* conf = location_conf(r);
    const DecidedLimit& limit = *state->limits;
    const bool rejected = !limit.decision.allowed;
    state->count = 1;
    state->headers = conf->headers;
    if (is_observed(r)) {
        count_limit({limit.applied->zone, view(key), limit.decided_by, kNoReason, &limit.decision}, !rejected,
                    conf->dry_run != 0, clock() - since);
    }
    if (!rejected && limit.decision.delay == 0) {
        state->status = Status::kPassed;
        return NGX_DECLINED;
    }
    state->status = status_of(*conf, rejected);
    log_decision(r, *state, 0, key);
    return rejected ? turn_away(r, state) : let_wait(r, limit.decision.delay, state);
}

// Whether the request is known to be rejected by its only limit, at this moment of the host's clock.
bool is_denied(const Policy& policy, const ngx_str_t& key, Micros now, RequestState* state) {
    DecidedLimit& limit = *state->limits;
    const Denials* denials = limit.applied->zone->denials;
    if (denials == nullptr || !denials->any(now) || limit.cost == 0 || policy.count_all) {
        return false;
    }
    NameRoom room;
    return denials->find(denials->hash(short_name(view(key), &room)), policy, limit.cost, now,
                         &limit.decision, &state->decided_at);
}

ngx_int_t ask_alone(ngx_http_request_t* r, const Policy& policy, const ngx_str_t& key, RequestState* state) {
    DecidedLimit& limit = *state->limits;
    const Micros now = this_process().clock();
    if (is_denied(policy, key, now, state)) {
        limit.decided_by = DecidedBy::kCache;
        return conclude_alone(r, key, now, this_process().clock, state);
    }
    state->status = Status::kBypassed;
    Items items;
    items.count = 1;
    items.list[0] = {limit.applied, key, &policy, limit.cost, 0, DecidedBy::kNobody, kNoReason, {}};
    return decide_with_redis(r, items, state, true);
}

// Decides a request that is under one limit, as nearly all are, without making lists of one. If there is
// something unusual to say of it, lists are made after all.
ngx_int_t decide_alone(ngx_http_request_t* r, const AppliedLimit& applied) {
    ngx_str_t key;
    if (!zone_key(r, *applied.zone, &key) || key.len == 0) {
        return decide_together(r);
    }
    const Policy* policy = policy_of(r, applied);
    RequestState* state = policy != nullptr && policy->rates.size != 0 ? make_request_state(r) : nullptr;
    if (state == nullptr) {
        return decide_together(r);
    }
    DecidedLimit& limit = *state->limits;
    limit.applied = &applied;
    limit.rates = &policy->rates;
    limit.cost = cost_of(r, applied);
    limit.decided_by = DecidedBy::kMemory;
    if (asks_redis(*applied.zone)) {
        return ask_alone(r, *policy, key, state);
    }
    const Micros now = wall_clock();
    const bool single = applied.single && policy == &applied.policy;
    Table* table = applied.zone->table;
    const Verdict verdict =
        single ? check_single(table, *policy, view(key), limit.cost, now, this_process(), &limit.decision)
               : check_by_name(table, *policy, view(key), limit.cost, now, this_process(), &limit.decision);
    if (verdict == Verdict::kBusy) {
        return decide_together(r);
    }
    state->decided_at = now;
    return conclude_alone(r, key, now, wall_clock, state);
}

}  // namespace

ngx_int_t handle_access(ngx_http_request_t* r) {
    const ngx_http_rate_limit_loc_conf_t* conf = location_conf(r);
    const RequestState* state = request_state(r);
    const bool unseen = state == nullptr || (state->status == Status::kNone && state->count == 0);
    if (conf->lone_limit != nullptr && unseen) {
        return decide_alone(r, *static_cast<AppliedLimit*>(conf->lone_limit));
    }
    const bool limited = conf->limits != nullptr && conf->limits->nelts != 0;
    return limited || has_shadows(*conf) ? decide_together(r) : NGX_DECLINED;
}

}  // namespace rate_limit
