// Zones and limits of the configuration: keys, policies and the memory of clients.
#pragma once

#include "algorithms/rate_memo.h"
#include "core/policy.h"
#include "memory/process.h"
#include "nginx/clock.h"
#include "nginx/module.h"
#include "nginx/redis.h"
#include "store/decide.h"

namespace rate_limit {

struct Zone : StoreZone {
    ngx_str_t name;
    ngx_http_complex_value_t key;
    ngx_int_t key_variable;  // index of the variable if the key is exactly one variable; else NGX_ERROR
    bool by_address;         // the key is exactly $binary_remote_addr
    ngx_http_complex_value_t* rate;  // of rate=$variable; else null, and policy.rates is set
    ngx_str_t rate_text;             // the text of rate=
    // Has the largest burst of the zone's limits, once the whole configuration is read. The rates are the
    // configured ones, or the live ones that this process has read last.
    Policy policy;
    RateList configured;   // of rate=
    ngx_str_t redis_name;  // empty for a zone in memory
    RedisServer* redis;    // of redis_name; set once the whole configuration is read
    ngx_msec_t sync;       // sync=, in milliseconds; 0 if Redis decides each request
    ngx_shm_zone_t* shm;
    ZoneSharedState* shared;
    bool shadow;                 // used by rate_limit_shadow
    bool keys_judged;            // this process knows that shared->empty_keys has ended
    std::uint64_t live_version;  // of the live rate that this process has read last
    bool is_live;                // whether this process uses a live rate
    RateList live;               // only if is_live
    ngx_shm_zone_t* replaces;  // on reload: memory in the old configuration, if its layout differs; else null
    RateMemo* rates;           // parsed values of `rate`, cached in this worker
    ngx_str_t file;            // position of the directive
    ngx_uint_t line;
};

// A rate_limit or rate_limit_shadow directive. `zone` is set once the whole configuration is read.
struct AppliedLimit {
    ngx_str_t zone_name;
    Zone* zone;
    Policy policy;                   // the zone's, with this directive's burst and delay
    bool single;                     // is_single(policy, zone->layout)
    ngx_http_complex_value_t* cost;  // of cost=$variable, else null
    std::uint64_t fixed_cost;
    ngx_http_complex_value_t* settle;  // of settle=$variable, else null
    std::uint64_t debt;                // debt=; kOneMore by default
    bool has_debt;
    bool shadow;       // of rate_limit_shadow
    bool hidden;       // headers=off: clients are not told of the limit
    ngx_uint_t phase;  // NGX_HTTP_ACCESS_PHASE or NGX_HTTP_PRECONTENT_PHASE
    bool has_burst;
    bool has_delay;  // nodelay or delay=
    std::uint64_t burst;
    std::uint64_t delay;
    void** context;  // location configurations of all modules at the directive
    bool warned;     // that the key has a variable that is set too late
    ngx_str_t file;  // position of the directive
    ngx_uint_t line;

    // Whether clients may owe `debt`.
    bool can_owe() const { return settle != nullptr || has_debt; }
};

// Adds the memory of a zone, `size` bytes, to the configuration that is being read. False after an error.
bool zone_add_memory(ngx_conf_t* cf, Zone* zone, std::size_t size);

// The key of a request in a zone; empty if the zone does not apply to the request. False if memory is
// exhausted.
inline bool zone_key(ngx_http_request_t* r, Zone& zone, ngx_str_t* key) {
    if (zone.key_variable == NGX_ERROR) {
        return ngx_http_complex_value(r, &zone.key, key) == NGX_OK;
    }
    *key = ngx_str(variable_value(r, zone.key_variable));
    return true;
}

// Whether Redis decides each request of a zone.
inline bool asks_redis(const Zone& zone) { return zone.redis_name.len != 0 && zone.sync == 0; }

// Whether the memory of a zone holds a table of clients, unsent counts for Redis in this table, denials by
// Redis, and leases.
inline bool needs_table(const Zone& zone) { return !asks_redis(zone) || zone.on_error == OnError::kLocal; }
inline bool needs_unsent_counts(const Zone& zone) { return zone.redis_name.len != 0 && needs_table(zone); }
inline bool needs_denials(const Zone& zone) { return asks_redis(zone) && zone.deny_for != 0; }
inline bool needs_leases(const Zone& zone) { return zone.lease.amount != 0; }

// The smallest size of a zone's memory that zone= accepts, in bytes.
std::size_t zone_least_size(const Zone& zone);

// Called once the configuration is read. Makes nginx allocate new memory for a zone if the memory of the
// running configuration has another layout.
void zone_plan_memory(Zone* zone);

// Called once the new configuration is in effect. Lets nginx free the replaced memory, and keep the new
// memory on the next reload.
void zone_replace_memory(ngx_cycle_t* cycle);

// Reads the live rate of a zone if the rate has changed since the last call. The request path may skip the
// call while the version of the live rate is 0.
void zone_follow(Zone* zone);

// The reason, without a full stop, why a zone has no room for these rates; null if the zone has room.
const char* zone_objection(const Zone& zone, const RateList& rates);

// The rates in force as text: the live rates, printed to `at`, which has room for kLongestRates bytes, or the
// text of rate=, which may be a variable.
std::string_view zone_rate_text(const Zone& zone, char* at);

// The interface to this process for code that uses shared memory.
const Process& this_process();

// Connects a zone to its Redis, once in each worker.
void zone_connect(Zone* zone);

// Lets a zone with sync= correct counts that were sent to its Redis.
void zone_connect_corrector(Zone* zone);

// Makes a limit of a client in a zone. The arguments must outlive the limit.
inline void make_limit(Zone* zone, const Policy& policy, std::string_view client, std::uint64_t cost,
                       Limit* limit) {
    if (asks_redis(*zone) && zone->batcher == nullptr) {
        zone_connect(zone);
    }
    limit->zone = zone;
    limit->policy = &policy;
    limit->client = client;
    limit->cost = cost;
    limit->tag = nullptr;
    limit->is_short = false;
    limit->is_single = false;
}

// The zone of a limit that make_limit made.
inline const Zone& zone_of(const Limit& limit) { return static_cast<const Zone&>(*limit.zone); }

}  // namespace rate_limit
