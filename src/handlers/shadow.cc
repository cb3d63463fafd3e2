// Checks of shadows, in shared memory and in Redis.
#include "handlers/shadow.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "handlers/effective_policy.h"
#include "handlers/empty_key.h"
#include "nginx/clock.h"
#include "request/counters.h"

namespace rate_limit {
namespace {

// The check of a shadow in Redis.
struct ShadowCheck {
    static constexpr std::size_t kShort = 256;

    bool admitted;  // by the live limits
    Policy policy;
    std::unique_ptr<char[]> long_name;
    char short_name[kShort];
    Limit limit;
    std::aligned_storage_t<sizeof(RequestCheck), alignof(RequestCheck)> request_check;
    ShadowCheck* next;
    ShadowCheck* previous;
};

ShadowCheck* in_flight = nullptr;  // the checks that Redis has not answered, of this process
ShadowCheck* free_checks = nullptr;

RequestCheck* request_check_of(ShadowCheck* check) {
    return reinterpret_cast<RequestCheck*>(&check->request_check);
}

void enlist(ShadowCheck* check) {
    check->previous = nullptr;
    check->next = in_flight;
    if (in_flight != nullptr) {
        in_flight->previous = check;
    }
    in_flight = check;
}

void unlist(ShadowCheck* check) {
    (check->previous != nullptr ? check->previous->next : in_flight) = check->next;
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

// Counts the decision of a shadow, if there is one.
void count_decision(const Limit& limit, const RequestOutcome& outcome, bool admitted) {
    if (limit.reason != kNoReason) {
        count_reason(zone_of(limit), limit.reason);
    }
    if (limit.decided_by != DecidedBy::kNobody) {
        count_shadow(zone_of(limit), limit.client, admitted, outcome.progress == Progress::kAdmitted);
    }
}

void conclude(ShadowCheck* check, const RequestOutcome& outcome) {
    count_decision(check->limit, outcome, check->admitted);
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

// Copies the client's name to memory that the check owns; null if memory is exhausted.
const char* keep_name(ShadowCheck* check, std::string_view name) {
    char* room = check->short_name;
    if (name.size() > ShadowCheck::kShort) {
        check->long_name.reset(new (std::nothrow) char[name.size()]);
        room = check->long_name.get();
    }
    if (room != nullptr) {
        std::copy(name.begin(), name.end(), room);
    }
    return room;
}

// The request may end before Redis answers, so the check owns its memory.
void ask_redis(const Limit& limit, bool admitted) {
    ShadowCheck* check = make_check();
    if (check == nullptr) {
        return;
    }
    const char* name = keep_name(check, limit.client);
    if (name == nullptr) {
        recycle(check);
        return;
    }
    check->admitted = admitted;
    check->policy = *limit.policy;
    check->limit = limit;
    check->limit.policy = &check->policy;
    check->limit.client = {name, limit.client.size()};
    const Waiter waiter = {
        [](void* data, std::size_t) -> void* { return &static_cast<ShadowCheck*>(data)->request_check; },
        [](RequestCheck* done) { conclude(static_cast<ShadowCheck*>(done->data), done->outcome()); }};
    const RequestOutcome outcome = decide(&check->limit, 1, this_process(), wall_clock, waiter, check);
    if (outcome.progress != Progress::kWaiting) {
        conclude(check, outcome);
    }
}

void ask_memory(Limit* limit, bool admitted) {
    const RequestOutcome outcome = decide(limit, 1, this_process(), wall_clock, {}, nullptr);
    count_decision(*limit, outcome, admitted);
}

void check_shadow(ngx_http_request_t* r, const AppliedLimit& applied, RequestState* state, bool admitted) {
    Zone* zone = applied.zone;
    ngx_str_t key;
    if (!add_zone(r, zone, &state->shadows) || !zone_key(r, *zone, &key)) {
        return;
    }
    if (key.len == 0) {
        count_bypass(*zone, Bypass::kEmptyKey);
        if (!zone->keys_judged) {
            note_empty_key(r, applied);
        }
        return;
    }
    note_key(zone);
    const Policy* policy = policy_of(r, applied);
    if (policy == nullptr) {
        count_reason(*zone, kNoRate);
        return;
    }
    if (policy->rates.size == 0) {
        // A shadow with the rate `off` admits all requests; those that the live limits reject are worth
        // counting.
        count_shadow(*zone, view(key), admitted, true);
        return;
    }
    Limit limit;
    make_limit(zone, *policy, view(key), cost_of(r, applied), &limit);
    if (asks_redis(*zone)) {
        ask_redis(limit, admitted);
    } else {
        ask_memory(&limit, admitted);
    }
}

}  // namespace

void check_shadows(ngx_http_request_t* r, const ngx_http_rate_limit_phase_t& phase, RequestState* state,
                   bool admitted) {
    if (phase.shadows == nullptr || !is_observed(r)) {
        return;
    }
    auto** shadows = static_cast<AppliedLimit**>(phase.shadows->elts);
    for (ngx_uint_t i = 0; i < phase.shadows->nelts; i++) {
        check_shadow(r, *shadows[i], state, admitted);
    }
}

void end_shadows() {
    while (in_flight != nullptr) {
        request_check_of(in_flight)->forget();
        recycle(in_flight);
    }
    while (free_checks != nullptr) {
        delete std::exchange(free_checks, free_checks->next);
    }
}

}  // namespace rate_limit
