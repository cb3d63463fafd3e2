// Zones as the configuration has them: who is counted, how much each may do, and where the counts are.
#pragma once

#include "core/policy.h"
#include "core/rate_memo.h"
#include "memory/process.h"
#include "nginx/clock.h"
#include "nginx/module.h"
#include "nginx/redis.h"
#include "store/decide.h"

namespace rate_limit {

struct Zone : StoreZone {
    ngx_str_t name;
    ngx_http_complex_value_t key;
    ngx_int_t key_variable;  // the index of the variable that the key is, and nothing else; or NGX_ERROR
    bool by_address;         // the key is $binary_remote_addr, and nothing else
    ngx_http_complex_value_t* rate;  // of rate=$variable, else null and policy.rates is set
    ngx_str_t rate_text;             // what rate= says
    // Once the whole configuration is read, with the largest burst of its limits; with the rate that is live,
    // as this process last saw it.
    Policy policy;
    RateList configured;   // of rate=
    ngx_str_t redis_name;  // empty for a zone in memory
    RedisServer* redis;    // of that name, once the whole configuration is read
    ngx_msec_t sync;       // sync=; 0 if each request asks Redis
    ngx_shm_zone_t* shm;
    ZoneSharedState* shared;
    bool shadow;                 // a candidate: rate_limit_shadow has it
    std::uint64_t live_version;  // of the board's rate, as this process last saw it
    bool is_live;                // whether there was one
    RateList live;               // if so
    ngx_shm_zone_t*
        replaces;     // on reload: the zone of the old configuration, if its memory has another layout
    RateMemo* rates;  // what `rate` was found to say in this worker
    ngx_str_t file;   // where the directive stands
    ngx_uint_t line;
};

// A rate_limit directive. Its zone is found once the whole configuration is read.
struct AppliedLimit {
    ngx_str_t zone_name;
    Zone* zone;
    Policy policy;                   // the zone's, with this directive's burst and delay
    bool single;                     // is_single(policy, zone->layout)
    ngx_http_complex_value_t* cost;  // of cost=$variable, else null
    std::uint32_t fixed_cost;
    bool shadow;  // of rate_limit_shadow
    bool has_burst;
    bool has_delay;  // nodelay or delay=
    std::uint32_t burst;
    std::uint32_t delay;
    void** context;  // what all modules have configured where the directive stands
    bool warned;     // of a variable in the key that is set too late
    ngx_str_t file;  // where the directive stands
    ngx_uint_t line;
};

// Adds the memory of a zone to the configuration that is being read.
bool zone_add_memory(ngx_conf_t* cf, Zone* zone, std::size_t size);

// Who the client of a request is to a zone, empty for nobody; false if there is no memory.
inline bool zone_key(ngx_http_request_t* r, Zone& zone, ngx_str_t* key) {
    if (zone.key_variable == NGX_ERROR) {
        return ngx_http_complex_value(r, &zone.key, key) == NGX_OK;
    }
    *key = ngx_str(variable_value(r, zone.key_variable));
    return true;
}

// Whether Redis decides each request of a zone.
inline bool asks_redis(const Zone& zone) { return zone.redis_name.len != 0 && zone.sync == 0; }

// Whether a zone's memory holds a table, whether that has unsent counts of what Redis is to be told, and
// whether it holds denials.
inline bool needs_table(const Zone& zone) { return !asks_redis(zone) || zone.on_error == OnError::kLocal; }
inline bool needs_unsent_counts(const Zone& zone) { return zone.redis_name.len != 0 && needs_table(zone); }
inline bool needs_denials(const Zone& zone) { return asks_redis(zone) && zone.deny_for != 0; }

// The least size of a zone's memory, as zone= takes it.
std::size_t zone_least_size(const Zone& zone);

// Called once the configuration is read: gives a zone memory of its own if that of the old configuration has
// another layout.
void zone_plan_memory(Zone* zone);

// Called once the new configuration stands: nginx may free the memory that was replaced, and keeps the new
// one.
void zone_replace_memory(ngx_cycle_t* cycle);

// Sees whether the zone's rate was changed while nginx runs. A request need not, while the board's version is
// 0.
void zone_follow(Zone* zone);

// What a rate would be if the zone had it, without a full stop, if it has no room for it; null if it has.
const char* zone_objection(const Zone& zone, const RateList& rates);

// The rates in force, as text in `at`, which has room for kLongestRates bytes, or as configured if that is a
// variable.
std::string_view zone_rate_text(const Zone& zone, char* at);

// This process, as the tables need to know it.
const Process& this_process();

// Connects a zone to its Redis, once in each worker. False if there is no memory.
bool zone_connect(Zone* zone);

// A limit of a client in a zone. False if there is no memory. The arguments must outlive the limit.
inline bool make_limit(Zone* zone, const Policy& policy, std::string_view client, std::uint32_t cost,
                       Limit* limit) {
    if (asks_redis(*zone) && zone->batcher == nullptr && !zone_connect(zone)) {
        return false;
    }
    limit->zone = zone;
    limit->policy = &policy;
    limit->client = client;
    limit->cost = cost;
    limit->is_short = false;
    limit->is_single = false;
    return true;
}

// The zone of a limit that make_limit made.
inline const Zone& zone_of(const Limit& limit) { return static_cast<const Zone&>(*limit.zone); }

}  // namespace rate_limit
