// Asks candidates. What Redis decides may come when the request has gone, so such a check has memory of its
// own.
#include "nginx/shadow.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "nginx/clock.h"
#include "nginx/counters.h"
#include "nginx/effective_policy.h"

namespace rate_limit {
namespace {

// A candidate's check that Redis has a part in.
struct ShadowCheck {
    static constexpr std::size_t kShort = 256;

    const Zone* zone;
    bool admitted;  // by the live limits
    Policy policy;
    std::unique_ptr<char[]> long_name;
    char short_name[kShort];
    Limit limit;
    BatchedLimit room;
    std::aligned_storage_t<sizeof(RequestCheck), alignof(RequestCheck)> group;
    ShadowCheck* next;
    ShadowCheck* previous;
};

ShadowCheck* under_way = nullptr;  // of this process
ShadowCheck* free_checks = nullptr;

RequestCheck* group_of(ShadowCheck* check) { return reinterpret_cast<RequestCheck*>(&check->group); }

void enlist(ShadowCheck* check) {
    check->previous = nullptr;
    check->next = under_way;
    if (under_way != nullptr) {
        under_way->previous = check;
    }
    under_way = check;
}

void unlist(ShadowCheck* check) {
    (check->previous != nullptr ? check->previous->next : under_way) = check->next;
    if (check->next != nullptr) {
        check->next->previous = check->previous;
    }
}

void recycle(ShadowCheck* check) {
    unlist(check);
    check->long_name.reset();
    check->next = free_checks;
    free_checks = check;
}

// Counts what came of a check, if anything did.
void conclude(ShadowCheck* check) {
    const Progress progress = group_of(check)->progress();
    if (check->limit.reason != kNoReason) {
        count_reason(*check->zone, check->limit.reason);
    }
    if (check->limit.decided_by != DecidedBy::kNobody) {
        count_shadow(*check->zone, check->limit.client, check->admitted, progress == Progress::kAdmitted);
    }
    recycle(check);
}

ShadowCheck* make_check() {
    ShadowCheck* check = free_checks;
    if (check != nullptr) {
        free_checks = check->next;
    } else {
        check = new (std::nothrow) ShadowCheck;
    }
    if (check != nullptr) {
        enlist(check);
    }
    return check;
}

// The client's name in memory of the check's own; null if there is none.
const char* keep_name(ShadowCheck* check, const ngx_str_t& name) {
    char* room = check->short_name;
    if (name.len > ShadowCheck::kShort) {
        check->long_name.reset(new (std::nothrow) char[name.len]);
        room = check->long_name.get();
    }
    if (room != nullptr) {
        std::copy_n(name.data, name.len, room);
    }
    return room;
}

void ask_redis(Zone* zone, const Policy& policy, const ngx_str_t& client, std::uint32_t cost, bool admitted) {
    CheckBatcher* batcher = redis_batcher(zone->redis);
    ShadowCheck* check = batcher != nullptr ? make_check() : nullptr;
    if (check == nullptr) {
        return;
    }
    const char* name = keep_name(check, client);
    if (name == nullptr) {
        recycle(check);
        return;
    }
    check->zone = zone;
    check->admitted = admitted;
    check->policy = policy;
    check->limit = {};
    check->limit.zone = view(zone->name);
    check->limit.client = {name, client.len};
    check->limit.policy = &check->policy;
    check->limit.layout = &zone->layout;
    check->limit.cost = cost;
    check->limit.table = zone->table;
    check->limit.batcher = batcher;
    check->limit.membership = zone->redis->membership();
    check->limit.denials = zone->denials;
    check->limit.deny_for = zone->deny_for;
    check->limit.on_error = zone->on_error;
    auto* group = new (&check->group)
        RequestCheck(&check->limit, &check->room, 1, this_process(), wall_clock,
                     [](RequestCheck* done) { conclude(static_cast<ShadowCheck*>(done->data)); });
    group->data = check;
    if (group->start() != Progress::kWaiting) {
        conclude(check);
    }
}

void ask_memory(const Zone& zone, const Policy& policy, const ngx_str_t& client, std::uint32_t cost,
                bool admitted) {
    TableLimits limits;
    limits.add(zone.table, policy, view(client), cost);
    const Verdict verdict = check(limits.data(), limits.size(), wall_clock(), this_process());
    if (verdict == Verdict::kBusy) {
        count_reason(zone, kNoSlot);
    } else {
        count_shadow(zone, view(client), admitted, verdict == Verdict::kAdmitted);
    }
}

void check_shadow(ngx_http_request_t* r, const AppliedLimit& applied, RequestState* state, bool admitted) {
    Zone* zone = applied.zone;
    ngx_str_t key;
    if (!add_zone(r, zone, &state->shadows) || !zone_key(r, *zone, &key)) {
        return;
    }
    if (key.len == 0) {
        count_bypass(*zone, Bypass::kEmptyKey);
        return;
    }
    const Policy* policy = policy_of(r, applied);
    if (policy == nullptr) {
        count_reason(*zone, kNoRate);
        return;
    }
    if (policy->rates.size == 0) {
        // It limits nobody, which is worth to be told of those that are limited now.
        count_shadow(*zone, view(key), admitted, true);
        return;
    }
    const std::uint32_t cost = cost_of(r, applied);
    if (asks_redis(*zone)) {
        ask_redis(zone, *policy, key, cost, admitted);
    } else {
        ask_memory(*zone, *policy, key, cost, admitted);
    }
}

}  // namespace

void check_shadows(ngx_http_request_t* r, RequestState* state, bool admitted) {
    const ngx_http_rate_limit_loc_conf_t* conf = location_conf(r);
    if (!has_shadows(*conf) || !is_observed(r)) {
        return;
    }
    auto** shadows = static_cast<AppliedLimit**>(conf->shadows->elts);
    for (ngx_uint_t i = 0; i < conf->shadows->nelts; i++) {
        check_shadow(r, *shadows[i], state, admitted);
    }
}

void end_shadows() {
    while (under_way != nullptr) {
        group_of(under_way)->forget();
        recycle(under_way);
    }
    while (free_checks != nullptr) {
        delete std::exchange(free_checks, free_checks->next);
    }
}

}  // namespace rate_limit
