// Checks that need the whole configuration: names of zones, Redis servers and variables, and limits that do
// not fit their zone.
#include <algorithm>

#include "configuration/warnings.h"
#include "directives/jwt_directive.h"
#include "directives/key_directive.h"
#include "directives/redis_directive.h"
#include "memory/table_check.h"
#include "nginx/collections.h"
#include "nginx/consequence.h"

namespace rate_limit {
namespace {

// The names of zones or servers, for messages.
template <class Named>
std::string names_of(const ngx_array_t& array) {
    std::string names;
    for (const Named* named : pointers<Named>(array)) {
        names.append(names.empty() ? "" : ", ").append(view(named->name));
    }
    constexpr std::size_t kLongest = 512;  // bytes
    return names.empty() ? "(none is defined)" : names.substr(0, kLongest);
}

// Refuses options of rate_limit that the algorithm of the zone does not use.
bool check_algorithm(ngx_conf_t* cf, const AppliedLimit& limit) {
    const Algorithm algorithm = limit.policy.algorithm;
    const char* wrong = nullptr;
    AlgorithmOption option = kTakesDelay;
    if (limit.has_burst && !takes<kTakesBurst>(algorithm)) {
        wrong = "burst=";
        option = kTakesBurst;
    } else if (limit.has_delay && !takes<kTakesDelay>(algorithm)) {
        wrong = limit.delay == kNoDelay ? "nodelay" : "delay=";
    }
    return wrong == nullptr ||
           refuse_at(cf, directive_of(limit), limit, "\"%s\" requires the algorithm %s, zone \"%V\" has %s",
                     wrong, names_of_algorithms_taking(option).text, &limit.zone_name,
                     algorithm_name(algorithm));
}

bool resolve_limit(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf, AppliedLimit* limit) {
    limit->zone = find_zone(&conf, limit->zone_name);
    if (limit->zone == nullptr) {
        return refuse_at(cf, directive_of(*limit), *limit,
                         "unknown zone \"%V\", it must be a zone of rate_limit_zone: %s", &limit->zone_name,
                         names_of<Zone>(conf.zones).c_str());
    }
    if (limit->cost != nullptr) {
        const ngx_str_t name = ngx_str(unknown_variable(cf, limit->cost->value));
        if (name.len != 0) {
            return refuse_at(cf, directive_of(*limit), *limit, "unknown variable \"$%V\" in \"cost=%V\", %s",
                             &name, &limit->cost->value, kVariableAccepted);
        }
    }
    limit->zone->shadow = limit->zone->shadow || limit->shadow;
    limit->policy = limit->zone->policy;
    if (!check_algorithm(cf, *limit)) {
        return false;
    }
    if (limit->has_burst) {
        limit->policy.burst = limit->burst;
    }
    if (takes<kTakesDelay>(limit->policy.algorithm)) {
        limit->policy.delay = limit->has_delay ? limit->delay : 0;
        if (limit->zone->lease.amount != 0 && limit->policy.delay != kNoDelay) {
            return refuse_at(cf, directive_of(*limit), *limit,
                             "zone \"%V\" has \"lease=\" and requires \"nodelay\": a request that takes its "
                             "quota from a lease does not know its place in the queue",
                             &limit->zone_name);
        }
    }
    limit->single = is_single(limit->policy, limit->zone->layout);
    return true;
}

bool resolve_limits(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf) {
    for (AppliedLimit* limit : pointers<AppliedLimit>(conf.limits)) {
        if (!resolve_limit(cf, conf, limit)) {
            return false;
        }
    }
    for (const AppliedLimit* limit : pointers<AppliedLimit>(conf.limits)) {
        if (limit->zone->shadow && !limit->shadow) {
            return refuse_at(cf, directive_of(*limit), *limit,
                             "zone \"%V\" is also used by rate_limit_shadow, it must be a zone that no "
                             "rate_limit_shadow uses",
                             &limit->zone_name);
        }
    }
    return true;
}

bool resolve_redis(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf, Zone* zone) {
    zone->redis = find_redis(&conf, zone->redis_name);
    if (zone->redis == nullptr) {
        return refuse_at(cf, "rate_limit_zone", *zone,
                         "unknown name in \"redis=%V\" of zone \"%V\", it must be a name of "
                         "rate_limit_redis: %s",
                         &zone->redis_name, &zone->name, names_of<RedisServer>(conf.servers).c_str());
    }
    // Requests that ask a Redis report its errors; requests of zones that send unsent counts do not ask.
    zone->redis->background.quiet = zone->redis->background.quiet && !needs_unsent_counts(*zone);
    zone->redis->counts_instances = zone->redis->counts_instances || zone->on_error == OnError::kLocal;
    return true;
}

bool resolve_zone(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf, Zone* zone) {
    if (zone->redis_name.len != 0 && !resolve_redis(cf, conf, zone)) {
        return false;
    }
    const ngx_http_complex_value_t* values[] = {&zone->key, zone->rate};
    for (const ngx_http_complex_value_t* value : values) {
        const ngx_str_t name = value != nullptr ? ngx_str(unknown_variable(cf, value->value)) : ngx_str_t();
        if (name.len != 0) {
            return refuse_at(cf, "rate_limit_zone", *zone,
                             "unknown variable \"$%V\" in \"%V\" of zone \"%V\", %s", &name, &value->value,
                             &zone->name, kVariableAccepted);
        }
    }
    zone_plan_memory(zone);
    return true;
}

// Gives a zone the debt of a limit, and room for this debt and for the burst of the limit.
void make_room(const AppliedLimit& limit, Zone* zone) {
    if (limit.can_owe()) {
        zone->policy.overdraft = ngx_max(zone->policy.overdraft, limit.debt);
    }
    Policy most = zone->policy;
    most.burst = limit.has_burst ? ngx_max(most.burst, limit.burst) : most.burst;
    const bool large = zone->layout.large || needs_large(most);
    if (zone->rate == nullptr) {
        zone->layout = layout_of(most);
    }
    zone->layout.large = large;
}

// Gives each zone the largest debt of its limits, and room for the largest burst.
bool share_room(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf) {
    for (const AppliedLimit* limit : pointers<AppliedLimit>(conf.limits)) {
        const bool relevant = limit->can_owe() || limit->has_burst;
        Zone* zone = relevant ? find_zone(&conf, limit->zone_name) : nullptr;
        if (zone == nullptr) {
            continue;
        }
        make_room(*limit, zone);
        if (zone->shm->shm.size < zone_least_size(*zone)) {
            return refuse_at(cf, "rate_limit", *limit,
                             "zone \"%V\" is too small for \"%s=\", its size must be at least %uzk",
                             &zone->name,
                             limit->settle != nullptr ? "settle"
                             : limit->has_debt        ? "debt"
                                                      : "burst",
                             (zone_least_size(*zone) + 1023) / 1024);
        }
    }
    return true;
}

// Gives a zone the largest burst of its limits, and its limits the highest level that the zone allows.
void share_bursts(const ngx_http_rate_limit_main_conf_t& conf) {
    for (const AppliedLimit* limit : pointers<AppliedLimit>(conf.limits)) {
        std::uint64_t& ceiling = limit->zone->policy.ceiling;
        ceiling = ngx_max(ceiling, limit->policy.burst + 1);
    }
    for (AppliedLimit* limit : pointers<AppliedLimit>(conf.limits)) {
        limit->policy.ceiling = limit->zone->policy.ceiling;
        // The zone's own policy charges what any of its limits has admitted.
        std::uint64_t& burst = limit->zone->policy.burst;
        burst = ngx_max(burst, limit->policy.burst);
    }
}

// The limits of one phase; null if there are none. False if memory is exhausted.
bool choose_limits(ngx_conf_t* cf, ngx_array_t* all, ngx_uint_t phase, ngx_array_t** chosen) {
    *chosen = nullptr;
    if (all == nullptr) {
        return true;
    }
    const auto limits = pointers<AppliedLimit>(*all);
    const auto is_of_phase = [phase](const AppliedLimit* limit) { return limit->phase == phase; };
    if (std::none_of(limits.begin(), limits.end(), is_of_phase)) {
        return true;
    }
    if (std::all_of(limits.begin(), limits.end(), is_of_phase)) {
        *chosen = all;
        return true;
    }
    *chosen = ngx_array_create(cf->pool, all->nelts, sizeof(AppliedLimit*));
    if (*chosen == nullptr) {
        return false;
    }
    for (AppliedLimit* limit : limits) {
        if (is_of_phase(limit)) {
            *static_cast<AppliedLimit**>(ngx_array_push(*chosen)) = limit;
        }
    }
    return true;
}

bool choose_phase(ngx_conf_t* cf, const ngx_http_rate_limit_loc_conf_t& conf, ngx_uint_t phase,
                  ngx_http_rate_limit_phase_t* chosen) {
    chosen->phase = phase;
    return choose_limits(cf, conf.limits, phase, &chosen->limits) &&
           choose_limits(cf, conf.shadows, phase, &chosen->shadows);
}

// Splits the limits and shadows of a location by phase. False if memory is exhausted.
bool split_phases(ngx_conf_t* cf, ngx_http_rate_limit_loc_conf_t* conf) {
    ngx_http_rate_limit_phase_t precontent;
    if (!choose_phase(cf, *conf, NGX_HTTP_ACCESS_PHASE, &conf->access) ||
        !choose_phase(cf, *conf, NGX_HTTP_PRECONTENT_PHASE, &precontent)) {
        return false;
    }
    if (precontent.limits != nullptr || precontent.shadows != nullptr) {
        conf->precontent = pool_new<ngx_http_rate_limit_phase_t>(cf->pool);
        if (conf->precontent == nullptr) {
            return false;
        }
        *conf->precontent = precontent;
    }
    const ngx_array_t* limits = conf->access.limits;
    const bool lone = limits != nullptr && limits->nelts == 1 && conf->access.shadows == nullptr;
    // The fast path does not test whether the client is told of the limit.
    AppliedLimit* limit = lone ? *static_cast<AppliedLimit**>(limits->elts) : nullptr;
    conf->lone_limit = limit != nullptr && !limit->hidden ? limit : nullptr;
    return true;
}

// False after an error was logged.
bool resolve_configuration(ngx_conf_t* cf) {
    const ngx_http_rate_limit_main_conf_t& conf = *main_conf_of(cf);
    if (!resolve_keys(cf, conf) || !resolve_tokens(cf, conf)) {
        return false;
    }
    if (!share_room(cf, conf)) {
        return false;
    }
    for (Zone* zone : pointers<Zone>(conf.zones)) {
        if (!resolve_zone(cf, conf, zone)) {
            return false;
        }
    }
    if (!resolve_limits(cf, conf)) {
        return false;
    }
    for (RedisServer* server : pointers<RedisServer>(conf.servers)) {
        server->observed = conf.observed != 0;
        if (!check_redis_hosts(cf, conf, *server)) {
            return false;
        }
        describe_consequence(conf, server);
    }
    share_bursts(conf);
    for (auto* location : pointers<ngx_http_rate_limit_loc_conf_t>(conf.locations)) {
        if (!split_phases(cf, location)) {
            return false;
        }
    }
    warn_of_mistakes(cf, conf);
    return true;
}

}  // namespace
}  // namespace rate_limit

extern "C" ngx_int_t ngx_http_rate_limit_check_configuration(ngx_conf_t* cf) {
    return rate_limit::resolve_configuration(cf) ? NGX_OK : NGX_ERROR;
}
