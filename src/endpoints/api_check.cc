// The calls check and remaining: a client's limit, decided as a request's is.
#include <jansson.h>

#include <algorithm>
#include <new>

#include "endpoints/api.h"
#include "nginx/clock.h"
#include "nginx/counters.h"
#include "nginx/log.h"

namespace rate_limit {
namespace {

// A call while it is decided, in the memory of its request.
struct Decided {
    ngx_http_request_t* request;
    Zone* zone;
    Policy policy;
    std::string_view shown;  // the client's name
    std::uint32_t permits;   // 0 looks
    Known known;             // of a look
    AppliedLimit applied;
    Limit limit;
    BatchedLimit room;
    RequestCheck group;
};

json_t* number_or_null(bool known, std::uint32_t number) {
    return known ? json_integer(number) : json_null();
}

// The rates that hold for the client, as far as they are known without its own requests; null if not.
const RateList* known_rates(const Zone& zone, const ApiArguments& arguments) {
    if (zone.is_live) {
        return &zone.live;
    }
    if (zone.rate == nullptr) {
        return &zone.configured;
    }
    return arguments.has_rate ? &arguments.rates : nullptr;
}

// The rates that a variable says for the call; null if it says none, which goes to `*text`.
const RateList* told_rates(ngx_http_request_t* r, Zone* zone, ngx_str_t* text) {
    return ngx_http_complex_value(r, zone->rate, text) == NGX_OK
               ? zone->rates->read(view(*text), zone->policy, zone->layout)
               : nullptr;
}

json_t* known_or_null(Known known) {
    return known == Known::kUnsure ? json_null() : json_boolean(known == Known::kYes);
}

// What is told of a client whose rate depends on its requests, and so is not known.
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
    put("zone", json_stringn(decided.limit.zone.data(), decided.limit.zone.size()));
    put("key", json_string(client_text(*decided.zone, decided.shown).c_str()));
    put("algorithm", json_string(algorithm_name(decided.policy.algorithm)));
    put("limit", number_or_null(known, decision.limit));
    put("remaining", number_or_null(known, decision.remaining));
    put("resetAfterSeconds", known ? json_seconds(decision.reset_after) : json_null());
    // A look does not know when a request would fit, and one that never does has no time.
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

// Lets the header filter and the variables tell of the decision as they do of a request's; not where the call
// is part of a request with limits of its own.
bool record(ngx_http_request_t* r, Decided* decided, bool allowed) {
    if (r != r->main) {
        return true;
    }
    RequestState* state = make_request_state(r, 1);
    if (state == nullptr) {
        return false;
    }
    state->status = allowed ? Status::kPassed : Status::kRejected;
    state->headers = location_conf(r)->headers;
    state->error = decided->group.error();
    state->decided_at = decided->group.decided_at();
    if (decided->limit.decided_by != DecidedBy::kNobody) {
        state->binding = state->count++;
        state->limits[state->binding] = {&decided->applied, &decided->policy.rates, decided->permits,
                                         decided->limit.decided_by, decided->limit.decision};
    }
    return true;
}

ngx_int_t conclude(ngx_http_request_t* r, Decided* decided) {
    const Progress progress = decided->group.progress();
    const bool allowed = progress == Progress::kAdmitted;
    if (decided->permits != 0) {
        const Limit& limit = decided->limit;
        count_limit({decided->zone, decided->shown, limit.decided_by, limit.reason, &limit.decision, true},
                    allowed, false, this_process().clock() - decided->group.started_at());
    }
    if (progress == Progress::kRefused) {
        return send_api_problem(
            r, NGX_HTTP_SERVICE_UNAVAILABLE,
            "zone \"" + std::string(view(decided->zone->name)) +
                "\" cannot be decided and fails closed: " + reason_name(decided->limit.reason));
    }
    if (!record(r, decided, allowed)) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    return send_json(r, allowed ? NGX_HTTP_OK : NGX_HTTP_TOO_MANY_REQUESTS, describe(*decided, allowed));
}

// The write handler while a request waits for Redis: ends the request if its client has cancelled it.
void sleep_on(ngx_http_request_t* r) { end_if_cancelled(r); }

// Redis has answered, or will not.
void wake(RequestCheck* group) {
    auto* decided = static_cast<Decided*>(group->data);
    ngx_http_request_t* r = decided->request;
    if (r->write_event_handler != sleep_on) {
        return;
    }
    ngx_connection_t* c = r->connection;
    ngx_http_set_log_request(c->log, r);
    ngx_http_finalize_request(r, conclude(r, decided));
    ngx_http_run_posted_requests(c);
}

// Counts a call whose client had gone before it was decided.
void count_gone(const RequestCheck& group) {
    const Limit& limit = *group.begin();
    const auto* zone = static_cast<const Zone*>(limit.data);
    count_limit({zone, limit.client, limit.decided_by, limit.reason, &limit.decision, true},
                group.progress() == Progress::kAdmitted, false, this_process().clock() - group.started_at());
    count_aborted(*zone);
}

void leave(void* data) {
    auto* decided = static_cast<Decided*>(data);
    decided->group.leave(decided->permits != 0 ? count_gone : nullptr);
}

// Lets the request sleep; a client that leaves meanwhile ends it.
ngx_int_t wait(ngx_http_request_t* r, Decided* decided) {
    ngx_http_cleanup_t* cleanup = ngx_http_cleanup_add(r, 0);
    if (cleanup == nullptr || ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
        leave(decided);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    cleanup->handler = leave;
    cleanup->data = decided;
    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = sleep_on;
    r->main->count++;
    return NGX_DONE;
}

// A copy of a text that is not empty; empty if there is no memory.
std::string_view pool_text(ngx_pool_t* pool, const std::string& text) {
    auto* copy = static_cast<char*>(ngx_pnalloc(pool, text.size()));
    if (copy == nullptr) {
        return {};
    }
    std::copy(text.begin(), text.end(), copy);
    return {copy, text.size()};
}

// What is to be decided, in the memory of the request; null if there is none.
Decided* make_decided(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments, const RateList& rates,
                      std::uint32_t permits) {
    CheckBatcher* batcher = asks_redis(*zone) ? redis_batcher(zone->redis) : nullptr;
    void* memory = ngx_pcalloc(r->pool, sizeof(Decided));
    const std::string_view key = pool_text(r->pool, arguments.key);
    const std::string_view shown = pool_text(r->pool, arguments.shown);
    if (memory == nullptr || key.empty() || shown.empty() || (asks_redis(*zone) && batcher == nullptr)) {
        return nullptr;
    }
    auto* decided = static_cast<Decided*>(memory);
    decided->request = r;
    decided->shown = shown;
    decided->zone = zone;
    decided->permits = permits;
    decided->policy = zone->policy;
    decided->policy.rates = rates;
    decided->applied.zone_name = zone->name;
    decided->applied.zone = zone;
    decided->applied.policy = decided->policy;
    const Membership* membership = batcher != nullptr ? zone->redis->membership() : nullptr;
    decided->limit = {view(zone->name),
                      key,
                      &decided->policy,
                      &zone->layout,
                      permits,
                      zone->table,
                      batcher,
                      membership,
                      zone->denials,
                      zone->deny_for,
                      zone->on_error,
                      DecidedBy::kNobody,
                      {}};
    decided->limit.is_short = true;
    decided->limit.data = zone;
    new (&decided->group) RequestCheck(&decided->limit, &decided->room, 1, this_process(), wall_clock, wake);
    decided->group.data = decided;
    return decided;
}

// Decides a request of so many permits, none to look, and answers.
ngx_int_t decide(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments, const RateList& rates,
                 std::uint32_t permits, Known known) {
    Decided* decided = make_decided(r, zone, arguments, rates, permits);
    if (decided == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    decided->known = known;
    if (rates.size == 0) {
        return send_json(r, NGX_HTTP_OK, describe(*decided, true));
    }
    return decided->group.start() == Progress::kWaiting ? wait(r, decided) : conclude(r, decided);
}

}  // namespace

ngx_int_t api_check(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments) {
    ngx_str_t text = {};
    const RateList* rates = known_rates(*zone, arguments);
    if (rates == nullptr) {
        rates = told_rates(r, zone, &text);
    }
    if (rates == nullptr) {
        count_reason(*zone, kNoRate);
        return send_api_problem(r, NGX_HTTP_BAD_REQUEST,
                                "the rate of zone \"" + std::string(view(zone->name)) + "\" is " +
                                    std::string(view(zone->rate_text)) + ", which is \"" +
                                    escaped_key(view(text).substr(0, kLongestLogged)) +
                                    "\" for this request: no rate, or more than the zone has room for; "
                                    "the argument rate tells another");
    }
    return decide(r, zone, arguments, *rates, arguments.permits, Known::kUnsure);
}

ngx_int_t api_look(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments, Known known) {
    const RateList* rates = known_rates(*zone, arguments);
    return rates != nullptr ? decide(r, zone, arguments, *rates, 0, known)
                            : send_json(r, NGX_HTTP_OK, describe_unrated(*zone, arguments, known));
}

}  // namespace rate_limit
