// The JSON of the calls zones, history and health.
#include "api/zones.h"

#include <jansson.h>

#include "api/answer.h"
#include "api/api.h"
#include "api/arguments.h"
#include "configuration/configuration.h"
#include "core/version_text.h"
#include "nginx/clock.h"
#include "nginx/collections.h"
#include "nginx/history_timer.h"
#include "nginx/shared_state.h"
#include "request/counters.h"

namespace rate_limit {
namespace {

using identity::Json;

constexpr std::size_t kMostLimited = 20;  // clients listed for a zone

// A JSON string. Text that is not UTF-8 is escaped: the configuration may contain any bytes.
json_t* text_of(std::string_view text) {
    json_t* string = json_stringn(text.data(), text.size());
    return string != nullptr ? string : json_string(escaped_key(text).c_str());
}

json_t* number_of(std::uint64_t number) { return json_integer(static_cast<json_int_t>(number)); }

void put(json_t* object, const char* name, json_t* value) { json_object_set_new(object, name, value); }

const char* on_error_name(OnError on_error) {
    switch (on_error) {
        case OnError::kClosed:
            return "closed";
        case OnError::kLocal:
            return "local";
        default:
            return "open";
    }
}

void put_settings(const Zone& zone, json_t* object) {
    const Policy& policy = zone.policy;
    char rate[kLongestRates];
    put(object, "zone", text_of(view(zone.name)));
    put(object, "key", text_of(view(zone.key.value)));
    put(object, "algorithm", json_string(algorithm_name(policy.algorithm)));
    put(object, "rate", text_of(zone_rate_text(zone, rate)));
    put(object, "configuredRate", text_of(view(zone.rate_text)));
    put(object, "live", json_boolean(zone.is_live));
    if (takes<kTakesBurst>(policy.algorithm)) {
        put(object, "burst", number_of(policy.burst));
    }
    if (policy.capacity != 0) {
        put(object, "capacity", number_of(policy.capacity));
    }
    if (takes<kTakesBuckets>(policy.algorithm)) {
        put(object, "buckets", number_of(policy.buckets));
    }
    if (policy.min_interval != 0) {
        put(object, "minIntervalSeconds", json_seconds(policy.min_interval));
    }
    put(object, "count", json_string(policy.count_all ? "all" : "allowed"));
    put(object, "store", json_string(asks_redis(zone) ? "redis" : "memory"));
    if (zone.redis != nullptr) {
        put(object, "redis", text_of(view(zone.redis->name)));
    }
    if (zone.sync != 0) {
        put(object, "syncSeconds", json_seconds(static_cast<Micros>(zone.sync) * 1000));
    }
    if (needs_leases(zone)) {
        const std::string amount = std::to_string(zone.lease.amount);
        put(object, "lease", text_of(amount + (zone.lease.is_percent ? "%" : "")));
    }
    if (asks_redis(zone)) {
        put(object, "onError", json_string(on_error_name(zone.on_error)));
        put(object, "denyCacheSeconds", json_seconds(zone.deny_for));
    }
}

void put_counters(const Zone& zone, json_t* object) {
    if (zone.table != nullptr) {
        put(object, "keys", number_of(zone.table->clients()));
        put(object, "slots", number_of(zone.table->slots()));
        put(object, "evictions", number_of(zone.table->evictions()));
    }
    if (zone.table != nullptr && zone.sync != 0) {
        put(object, "syncOvershoot", number_of(zone.table->overshoot()));
        put(object, "syncLost", number_of(zone.table->lost()));
    }
    if (zone.leases != nullptr) {
        const LeaseTotals leases = zone.leases->totals();
        json_t* sums = json_object();
        put(sums, "asks", number_of(leases.asks));
        put(sums, "leased", number_of(leases.leased));
        put(sums, "returned", number_of(leases.returned));
        put(object, "leases", sums);
    }
    const ZoneTotals totals = zone_totals(zone);
    json_t* requests = json_object();
    put(requests, "allowed", number_of(totals.allowed));
    put(requests, "rejected", number_of(totals.rejected));
    put(requests, "delayed", number_of(totals.delayed));
    put(object, "requests", requests);
    json_t* dry_run = json_object();
    put(dry_run, "rejected", number_of(totals.dry_run_rejected));
    put(dry_run, "delayed", number_of(totals.dry_run_delayed));
    put(object, "dryRun", dry_run);
    if (zone.shadow) {
        const auto& shadows = totals.shadows;  // [admitted by the live limits][admitted by the shadow]
        json_t* shadow = json_object();
        put(shadow, "allowed", number_of(shadows[0][1] + shadows[1][1]));
        put(shadow, "rejected", number_of(shadows[0][0] + shadows[1][0]));
        put(shadow, "newlyRejected", number_of(shadows[1][0]));
        put(shadow, "newlyAllowed", number_of(shadows[0][1]));
        put(object, "shadow", shadow);
    }
    json_t* stores = json_object();
    for (const DecidedBy decided_by : {DecidedBy::kMemory, DecidedBy::kRedis, DecidedBy::kCache,
                                       DecidedBy::kFallback, DecidedBy::kLease}) {
        if (decided_by != DecidedBy::kLease || zone.leases != nullptr) {
            put(stores, decided_by_name(decided_by),
                number_of(totals.decided_by[static_cast<unsigned>(decided_by)]));
        }
    }
    put(object, "stores", stores);
    json_t* errors = json_object();
    for (unsigned reason = 1; reason < kReasons; reason++) {
        if (totals.reasons[reason] != 0) {
            put(errors, reason_name(static_cast<Reason>(reason)), number_of(totals.reasons[reason]));
        }
    }
    put(object, "errors", errors);
}

json_t* limited_of(const Zone& zone) {
    json_t* list = json_array();
    for (const TopClient& top_client : limited_clients(zone, kMostLimited)) {
        json_t* client = json_object();
        put(client, "key", text_of(client_text(zone, top_client.name)));
        put(client, "rejected", number_of(top_client.rejected));
        put(client, "error", number_of(top_client.error));
        json_array_append_new(list, client);
    }
    return list;
}

json_t* zone_object(Zone* zone) {
    zone_follow(zone);
    json_t* object = json_object();
    put_settings(*zone, object);
    put_counters(*zone, object);
    return object;
}

template <unsigned kBounds>
json_t* histogram_of(const HistogramTotals<kBounds>& totals, json_t* bounds, json_t* sum) {
    json_t* counts = json_array();
    for (const std::uint64_t count : totals.counts) {
        json_array_append_new(counts, number_of(count));
    }
    json_t* object = json_object();
    put(object, "le", bounds);
    put(object, "counts", counts);
    put(object, "sum", sum);
    put(object, "count", number_of(totals.count));
    return object;
}

json_t* redis_object(const RedisServer& server) {
    const RedisTotals totals = redis_totals(server);
    json_t* object = json_object();
    put(object, "redis", text_of(view(server.name)));
    put(object, "up", json_boolean(is_up(server)));
    put(object, "breakerOpen", json_boolean(open_breakers(server) != 0));
    put(object, "native", json_boolean(totals.is_native));
    if (server.counts_instances) {
        put(object, "instances", number_of(server.membership()->share().instances));
    }
    json_t* errors = json_object();
    for (unsigned error = 1; error < redis::kErrors; error++) {
        if (totals.errors[error] != 0) {
            put(errors, redis::error_name(static_cast<redis::Error>(error)), number_of(totals.errors[error]));
        }
    }
    put(object, "errors", errors);
    json_t* times = json_array();
    for (const Micros bound : kTimeBoundsMicros) {
        json_array_append_new(times, json_seconds(bound));
    }
    json_t* sizes = json_array();
    for (const std::uint64_t bound : kBatchBoundsGroups) {
        json_array_append_new(sizes, number_of(bound));
    }
    put(object, "roundTripSeconds",
        histogram_of(totals.round_trips, times, json_seconds(static_cast<Micros>(totals.round_trips.sum))));
    put(object, "batchSize", histogram_of(totals.batches, sizes, number_of(totals.batches.sum)));
    return object;
}

// Whether a zone uses a Redis. Sets `*closed` if requests of such a zone fail closed.
bool is_used(const ngx_http_rate_limit_main_conf_t& conf, const RedisServer* server, bool* closed) {
    bool used = false;
    for (const Zone* zone : pointers<Zone>(conf.zones)) {
        used = used || zone->redis == server;
        *closed =
            *closed || (zone->redis == server && asks_redis(*zone) && zone->on_error == OnError::kClosed);
    }
    return used;
}

std::string print_instance() {
    std::uint64_t id = 0;
    read_instance_id(&id);
    u_char text[17];
    return {reinterpret_cast<char*>(text), static_cast<std::size_t>(ngx_sprintf(text, "%016xL", id) - text)};
}

// A time with milliseconds.
json_t* time_of(Micros time) { return json_seconds(time / 1000 * 1000); }

void put_instance(json_t* object) {
    put(object, "instance", text_of(print_instance()));
    put(object, "time", time_of(wall_clock()));
}

json_t* zone_history_object(const Zone& zone) {
    json_t* times = json_array();
    json_t* counts[kZoneCounters] = {json_array(), json_array(), json_array(), json_array()};
    for (const ZoneHistory::Moment& moment : zone_history(zone)) {
        json_array_append_new(times, time_of(moment.time));
        for (unsigned i = 0; i < kZoneCounters; i++) {
            json_array_append_new(counts[i], number_of(moment.counts[i]));
        }
    }
    json_t* object = json_object();
    put(object, "zone", text_of(view(zone.name)));
    put(object, "times", times);
    put(object, "allowed", counts[kCountAllowed]);
    put(object, "rejected", counts[kCountRejected]);
    put(object, "delayed", counts[kCountDelayed]);
    put(object, "errors", counts[kCountErrors]);
    return object;
}

json_t* redis_history_object(const RedisServer& server) {
    json_t* times = json_array();
    json_t* round_trips = json_array();
    for (const RedisHistory::Moment& moment : redis_history(server)) {
        json_array_append_new(times, time_of(moment.time));
        json_t* counts = json_array();
        for (const std::uint64_t count : moment.counts) {
            json_array_append_new(counts, number_of(count));
        }
        json_array_append_new(round_trips, counts);
    }
    json_t* object = json_object();
    put(object, "redis", text_of(view(server.name)));
    put(object, "times", times);
    put(object, "roundTripCounts", round_trips);
    return object;
}

// The servers that a zone uses, each described by `describe`.
template <class Describe>
json_t* describe_servers(const ngx_http_rate_limit_main_conf_t& conf, Describe describe) {
    json_t* list = json_array();
    for (const RedisServer* server : pointers<RedisServer>(conf.servers)) {
        bool closed = false;
        if (is_used(conf, server, &closed)) {
            json_array_append_new(list, describe(*server));
        }
    }
    return list;
}

}  // namespace

Json describe_history(ngx_http_request_t* r) {
    const ngx_http_rate_limit_main_conf_t& conf = *main_conf_of(r);
    json_t* object = json_object();
    put_instance(object);
    json_t* list = json_array();
    for (const Zone* zone : pointers<Zone>(conf.zones)) {
        json_array_append_new(list, zone_history_object(*zone));
    }
    put(object, "zones", list);
    put(object, "redis", describe_servers(conf, redis_history_object));
    return Json(object);
}

Json describe_zones(ngx_http_request_t* r) {
    const ngx_http_rate_limit_main_conf_t& conf = *main_conf_of(r);
    json_t* object = json_object();
    put(object, "version", text_of(kVersion));
    put_instance(object);
    put(object, "host", text_of(view(const_cast<ngx_cycle_t*>(ngx_cycle)->hostname)));
    put(object, "write", json_boolean(api_settings(r).write));
    put(object, "keys", json_boolean(api_settings(r).keys));
    json_t* list = json_array();
    for (Zone* zone : pointers<Zone>(conf.zones)) {
        json_array_append_new(list, zone_object(zone));
    }
    put(object, "zones", list);
    put(object, "redis", describe_servers(conf, redis_object));
    return Json(object);
}

Json describe_zone(ngx_http_request_t* r, Zone* zone) {
    json_t* object = zone_object(zone);
    if (api_settings(r).keys) {
        put(object, "limited", limited_of(*zone));
    }
    return Json(object);
}

Json describe_health(ngx_http_request_t* r, bool* healthy) {
    const ngx_http_rate_limit_main_conf_t& conf = *main_conf_of(r);
    json_t* states = json_object();
    *healthy = true;
    for (const RedisServer* server : pointers<RedisServer>(conf.servers)) {
        bool closed = false;
        if (is_used(conf, server, &closed)) {
            const bool up = is_up(*server);
            const std::string name(view(server->name));
            put(states, name.c_str(), json_string(up ? "UP" : "DOWN"));
            *healthy = *healthy && (up || !closed);
        }
    }
    json_t* object = json_object();
    put(object, "status", json_string(*healthy ? "UP" : "DOWN"));
    put(object, "redis", states);
    return Json(object);
}

}  // namespace rate_limit
