// The API calls check and remaining: decide the limit of a client like that of a request.
#include "api/check.h"

#include <jansson.h>

#include <algorithm>
#include <memory>
#include <new>

#include "api/answer.h"
#include "api/operation.h"
#include "handlers/effective_policy.h"
#include "nginx/clock.h"
#include "nginx/suspend.h"
#include "request/counters.h"
#include "request/log.h"

namespace rate_limit {
namespace {

// A call that is being decided, in the pool of its request.
struct Decided {
    ngx_http_request_t* request;
    Zone* zone;
    Policy policy;
    std::string_view shown;  // the client's name
    std::uint64_t permits;   // 0 for the call remaining, which charges nothing
    Known known;             // of the call remaining
    Limit limit;
    RequestCheck* check;  // while Redis decides
};

json_t* number_or_null(bool known, std::uint64_t number) {
    return known ? json_integer(static_cast<json_int_t>(number)) : json_null();
}

json_t* known_or_null(Known known) {
    return known == Known::kUnsure ? json_null() : json_boolean(known == Known::kYes);
}

// The answer for a client whose rate is unknown, because the rate depends on its requests.
identity::Json describe_unrated(const Zone& zone, const ApiArguments& arguments, Known known) {
    json_t* object = json_object();
    const auto put = [&](const char* name, json_t* value) { json_object_set_new(object, name, value); };
    put("allowed", json_null());
    put("zone", json_stringn(view(zone.name).data(), zone.name.len));
    put("key", json_string(client_text(zone, arguments.shown).c_str()));
    put("algorithm", json_string(algorithm_name(zone.policy.algorithm)));
    for (const char* name :
         {"limit", "remaining", "resetAfterSeconds", "retryAfterSeconds", "store", "rate"}) {
        put(name, json_null());
    }
    put("known", known_or_null(known));
    const std::string detail = "the rate of this zone is " + escaped_key(view(zone.rate_text)) +
                               ", and that of this client is not known; the argument rate tells it";
    put("detail", json_string(detail.c_str()));
    return identity::Json(object);
}

identity::Json describe(const Decided& decided, bool allowed) {
    const Decision& decision = decided.limit.decision;
    const bool known = decided.limit.decided_by != DecidedBy::kNobody;
    const bool look = decided.permits == 0;
    const bool free = allowed && !(look && known && decision.remaining == 0);
    json_t* object = json_object();
    const auto put = [&](const char* name, json_t* value) { json_object_set_new(object, name, value); };
    put("allowed", json_boolean(free));
    put("zone", json_stringn(view(decided.zone->name).data(), decided.zone->name.len));
    put("key", json_string(client_text(*decided.zone, decided.shown).c_str()));
    put("algorithm", json_string(algorithm_name(decided.policy.algorithm)));
    put("limit", number_or_null(known, decision.limit));
    put("remaining", number_or_null(known, decision.remaining));
    put("resetAfterSeconds", known ? json_seconds(decision.reset_after) : json_null());
    // The call remaining does not compute a retry time. A request that can never be admitted has none.
    const bool never = look || decision.retry_after == kNever;
    put("retryAfterSeconds", free    ? json_integer(0)
                             : never ? json_null()
                                     : json_seconds(decision.retry_after));
    const bool unlimited = decided.policy.rates.size == 0;
    put("store", unlimited ? json_null()
                           : json_string(known ? decided_by_name(decided.limit.decided_by) : "fallback"));
    if (look) {
        char rate[kLongestRates];
        put("rate", json_stringn(rate, print_rates(decided.policy.rates, rate)));
        put("known", known_or_null(decided.known));
    }
    return identity::Json(object);
}

// Records the decision for the header filter and the variables, as for a request. Records nothing for a
// subrequest, because its main request has its own limits. False if memory is exhausted.
bool record(ngx_http_request_t* r, const Decided& decided, const RequestOutcome& outcome) {
    if (r != r->main) {
        return true;
    }
    RequestState* state = make_request_state(r, 1);
    if (state == nullptr) {
        return false;
    }
    state->status = outcome.progress == Progress::kAdmitted ? Status::kPassed : Status::kRejected;
    // The limits of the API's own location may be hidden.
    state->headers = is_shown(*state, decided.limit) ? static_cast<std::uint32_t>(location_conf(r)->headers)
                                                     : NGX_HTTP_RATE_LIMIT_HEADERS_OFF;
    state->error = outcome.error;
    if (decided.limit.decided_by != DecidedBy::kNobody) {
        state->binding = state->shown = state->count++;
        state->limits[state->binding] = decided.limit;
    }
    return true;
}

ngx_int_t conclude(ngx_http_request_t* r, const Decided& decided, const RequestOutcome& outcome) {
    const bool allowed = outcome.progress == Progress::kAdmitted;
    if (decided.permits != 0) {
        Limit shown = decided.limit;
        shown.client = decided.shown;
        count_limit(shown, outcome, false);
    }
    if (outcome.progress == Progress::kRefused) {
        return send_api_problem(
            r, NGX_HTTP_SERVICE_UNAVAILABLE,
            "zone \"" + std::string(view(decided.zone->name)) +
                "\" cannot be decided and fails closed: " + reason_name(decided.limit.reason));
    }
    if (!record(r, decided, outcome)) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    return send_json(r, allowed ? NGX_HTTP_OK : NGX_HTTP_TOO_MANY_REQUESTS, describe(decided, allowed));
}

void wake(RequestCheck* check) {
    const auto* decided = static_cast<Decided*>(check->data);
    ngx_http_request_t* r = decided->request;
    resume(r, [=] { ngx_http_finalize_request(r, conclude(r, *decided, check->outcome())); });
}

void leave(void* data) {
    const auto* decided = static_cast<Decided*>(data);
    if (decided->check->progress() == Progress::kWaiting) {
        decided->check->leave(decided->permits != 0 ? count_left : nullptr);
    }
}

ngx_int_t wait_for_redis(ngx_http_request_t* r, RequestCheck* check, Decided* decided) {
    decided->check = check;
    if (suspend(r, leave, decided) == nullptr) {
        leave(decided);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    r->main->count++;
    return NGX_DONE;
}

void* allocate(void* decided, std::size_t size) {
    return ngx_palloc(static_cast<Decided*>(decided)->request->pool, size);
}

// A copy of a text that is not empty; empty if memory is exhausted.
std::string_view pool_text(ngx_pool_t* pool, const std::string& text) {
    auto* copy = static_cast<char*>(ngx_pnalloc(pool, text.size()));
    if (copy == nullptr) {
        return {};
    }
    std::copy(text.begin(), text.end(), copy);
    return {copy, text.size()};
}

// Creates a Decided in the pool of the request; null if memory is exhausted.
Decided* make_decided(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments, const RateList& rates,
                      std::uint64_t permits) {
    void* memory = ngx_pcalloc(r->pool, sizeof(Decided));
    const std::string_view key = pool_text(r->pool, arguments.key);
    const std::string_view shown = pool_text(r->pool, arguments.shown);
    if (memory == nullptr || key.empty() || shown.empty()) {
        return nullptr;
    }
    auto* decided = static_cast<Decided*>(memory);
    decided->request = r;
    decided->shown = shown;
    decided->zone = zone;
    decided->permits = permits;
    decided->policy = zone->policy;
    decided->policy.rates = rates;
    make_limit(zone, decided->policy, key, permits, &decided->limit);
    decided->limit.is_short = true;
    return decided;
}

// Decides a request for `permits`, which are 0 for the call remaining, and answers.
ngx_int_t decide_call(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments, const RateList& rates,
                      std::uint64_t permits, Known known) {
    Decided* decided = make_decided(r, zone, arguments, rates, permits);
    if (decided == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    decided->known = known;
    if (rates.size == 0) {
        return send_json(r, NGX_HTTP_OK, describe(*decided, true));
    }
    const RequestOutcome outcome =
        decide(&decided->limit, 1, this_process(), wall_clock, {allocate, wake}, decided);
    if (outcome.progress == Progress::kWaiting) {
        return wait_for_redis(r, outcome.check, decided);
    }
    return outcome.progress != Progress::kNoMemory ? conclude(r, *decided, outcome)
                                                   : NGX_HTTP_INTERNAL_SERVER_ERROR;
}

struct Lookup final : ApiOperation {
    Lookup(Zone* zone, const ApiArguments& asked, AfterLookup then)
        : ApiOperation(zone),
          asked(asked),
          then(then),
          lookup(operation_target(*zone), asked.key,
                 zone->redis != nullptr ? &zone->redis->look_denied : nullptr) {}

    FleetOperation* operation() override { return &lookup; }
    ngx_int_t answer() override { return then(request, zone, asked, lookup.known()); }

    ApiArguments asked;
    AfterLookup then;
    ClientLookup lookup;
};

}  // namespace

ngx_int_t api_check(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments) {
    ngx_str_t text = {};
    const RateList* rates = arguments.has_rate ? known_rates(zone, arguments) : rates_of(r, zone, &text);
    if (rates == nullptr) {
        count_reason(*zone, kNoRate);
        return send_api_problem(r, NGX_HTTP_BAD_REQUEST,
                                "the rate of zone \"" + std::string(view(zone->name)) + "\" is " +
                                    std::string(view(zone->rate_text)) + ", which is \"" +
                                    escaped_key(view(text).substr(0, kLongestLogged)) +
                                    "\" for this request: no rate, or more than the zone has room for; "
                                    "the argument rate tells another");
    }
    return decide_call(r, zone, arguments, *rates, arguments.permits, Known::kUnsure);
}

ngx_int_t api_remaining(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments) {
    return look_up_client(r, zone, arguments, answer_remaining);
}

const RateList* known_rates(Zone* zone, const ApiArguments& arguments) {
    const RateList* common = common_rates(zone);
    return common == nullptr && arguments.has_rate ? &arguments.rates : common;
}

ngx_int_t answer_remaining(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments, Known known) {
    const RateList* rates = known_rates(zone, arguments);
    return rates != nullptr ? decide_call(r, zone, arguments, *rates, 0, known)
                            : send_json(r, NGX_HTTP_OK, describe_unrated(*zone, arguments, known));
}

ngx_int_t answer_decided(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments,
                         const RateList& rates, const Decision& decision, Micros time, Known known) {
    Decided* decided = make_decided(r, zone, arguments, rates, 0);
    if (decided == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    decided->known = known;
    decided->limit.decided_by = DecidedBy::kRedis;
    decided->limit.decided_at = time;
    decided->limit.decision = decision;
    return conclude(r, *decided, {Progress::kAdmitted, redis::Error::kNone, time, wall_clock, nullptr});
}

ngx_int_t look_up_client(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments, AfterLookup then) {
    auto operation = std::make_unique<Lookup>(zone, arguments, then);
    if (operation->lookup.find_here()) {
        return then(r, zone, arguments, operation->lookup.known());
    }
    return start_operation(r, std::move(operation));
}

}  // namespace rate_limit
