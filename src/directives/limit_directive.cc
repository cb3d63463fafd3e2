// The directives rate_limit and rate_limit_shadow, and what can be checked only when the whole configuration
// is read.
#include "directives/configuration.h"
#include "directives/warnings.h"
#include "memory/table_check.h"
#include "nginx/jwt.h"
#include "nginx/key.h"
#include "nginx/shadow.h"

namespace rate_limit {
namespace {

char* read_cost(ngx_conf_t* cf, ngx_command_t* cmd, const ngx_str_t& word, ngx_str_t value,
                AppliedLimit* limit) {
    if (ngx_strlchr(value.data, value.data + value.len, '$') != nullptr) {
        limit->cost = pool_new<ngx_http_complex_value_t>(cf->pool);
        return limit->cost != nullptr && compile_value(cf, cmd, &value, limit->cost)
                   ? nullptr
                   : static_cast<char*>(NGX_CONF_ERROR);
    }
    std::uint64_t number = 0;
    if (!parse_number(view(value), kMaxCost, &number)) {
        return refuse(cf, cmd, "\"%V\" is not a cost; accepted are numbers from 0 to %uD or a variable",
                      &word, kMaxCost);
    }
    limit->fixed_cost = static_cast<std::uint32_t>(number);
    return nullptr;
}

char* read_limit_word(ngx_conf_t* cf, ngx_command_t* cmd, const ngx_str_t& word, AppliedLimit* limit) {
    ngx_str_t value = {};
    std::uint64_t number = 0;
    if (option(word, "zone", &value) && value.len != 0) {
        limit->zone_name = value;
        return nullptr;
    }
    if (option(word, "cost", &value)) {
        return read_cost(cf, cmd, word, value, limit);
    }
    if (limit->has_delay && (view(word) == "nodelay" || option(word, "delay", &value))) {
        return refuse(cf, cmd,
                      "\"%V\" contradicts an earlier word; accepted is either nodelay or delay=", &word);
    }
    if (view(word) == "nodelay") {
        limit->has_delay = true;
        limit->delay = kNoDelay;
        return nullptr;
    }
    const bool burst = option(word, "burst", &value);
    if (burst || option(word, "delay", &value)) {
        if (!parse_number(view(value), kMaxBurst, &number)) {
            return refuse(cf, cmd, "\"%V\" is out of range; accepted are numbers from 0 to %uD", &word,
                          kMaxBurst);
        }
        (burst ? limit->has_burst : limit->has_delay) = true;
        (burst ? limit->burst : limit->delay) = static_cast<std::uint32_t>(number);
        return nullptr;
    }
    return refuse(cf, cmd,
                  "\"%V\" is not known; accepted are zone=NAME, cost=, burst=, nodelay and delay=, or off",
                  &word);
}

char* read_limit(ngx_conf_t* cf, ngx_command_t* cmd, ngx_array_t** limits, bool shadow) {
    ngx_str_t* words = words_of(cf);
    const bool first = *limits == nullptr;
    const bool off = cf->args->nelts == 2 && view(words[1]) == "off";
    if (!first && (off || (*limits)->nelts == 0)) {
        return refuse(cf, cmd, "\"%V\" contradicts an earlier %V here; accepted is either off or zones",
                      &words[1], &cmd->name);
    }
    if (first) {
        *limits = ngx_array_create(cf->pool, 2, sizeof(AppliedLimit*));
    }
    if (*limits == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    if (off) {
        return NGX_CONF_OK;
    }
    auto* limit = pool_new<AppliedLimit>(cf->pool);
    if (limit == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    if (char* wrong = refuse_repeated(cf, cmd, 1)) {
        return wrong;
    }
    limit->fixed_cost = 1;
    limit->shadow = shadow;
    limit->context = static_cast<ngx_http_conf_ctx_t*>(cf->ctx)->loc_conf;
    limit->file = cf->conf_file->file.name;
    limit->line = cf->conf_file->line;
    for (ngx_uint_t i = 1; i < cf->args->nelts; i++) {
        char* wrong = read_limit_word(cf, cmd, words[i], limit);
        if (wrong != nullptr) {
            return wrong;
        }
    }
    if (limit->zone_name.len == 0) {
        return refuse(
            cf, cmd,
            "zone= is missing; accepted is zone=NAME [cost=N] [burst=N] [nodelay | delay=N], or off");
    }
    auto** here = static_cast<AppliedLimit**>((*limits)->elts);
    for (ngx_uint_t i = 0; i < (*limits)->nelts; i++) {
        if (view(here[i]->zone_name) == view(limit->zone_name)) {
            return refuse(cf, cmd, "zone \"%V\" is applied twice here; accepted is each zone once",
                          &limit->zone_name);
        }
    }
    if ((*limits)->nelts == kMaxLimits) {
        return refuse(cf, cmd, "zone \"%V\" is one too many here; accepted are %uz zones", &limit->zone_name,
                      kMaxLimits);
    }
    auto* main = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_rate_limit_module));
    auto** slot = static_cast<AppliedLimit**>(ngx_array_push(*limits));
    auto** every = static_cast<AppliedLimit**>(ngx_array_push(&main->limits));
    if (slot == nullptr || every == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    *slot = *every = limit;
    return NGX_CONF_OK;
}

// Errors that show only when all is read name the place themselves.
template <class... Arguments>
bool refuse_limit(ngx_conf_t* cf, const AppliedLimit& limit, const char* format, Arguments... arguments) {
    u_char text[NGX_MAX_CONF_ERRSTR];
    u_char* end = ngx_snprintf(text, sizeof(text), format, arguments...);
    ngx_str_t message = {static_cast<std::size_t>(end - text), text};
    ngx_log_error(NGX_LOG_EMERG, cf->log, 0, "\"%s\": %V in %V:%ui",
                  limit.shadow ? "rate_limit_shadow" : "rate_limit", &message, &limit.file, limit.line);
    return false;
}

// The names of zones or servers, for messages.
template <class Named>
ngx_str_t names_of(ngx_conf_t* cf, Named** all, ngx_uint_t count) {
    constexpr std::size_t kMost = 512;
    auto* text = static_cast<u_char*>(ngx_pnalloc(cf->pool, kMost));
    if (text == nullptr || count == 0) {
        return ngx_string("(there is none)");
    }
    u_char* end = text;
    for (ngx_uint_t i = 0; i < count; i++) {
        end = ngx_slprintf(end, text + kMost, "%s%V", i == 0 ? "" : ", ", &all[i]->name);
    }
    return {static_cast<std::size_t>(end - text), text};
}

bool resolve_limit(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t* conf, AppliedLimit* limit) {
    limit->zone = find_zone(conf, limit->zone_name);
    if (limit->zone == nullptr) {
        const ngx_str_t names = names_of(cf, static_cast<Zone**>(conf->zones.elts), conf->zones.nelts);
        return refuse_limit(cf, *limit,
                            "zone \"%V\" is not defined; accepted are the zones of rate_limit_zone: %V",
                            &limit->zone_name, &names);
    }
    if (limit->cost != nullptr) {
        const ngx_str_t name = ngx_str(unknown_variable(cf, limit->cost->value));
        if (name.len != 0) {
            return refuse_limit(cf, *limit,
                                "variable \"$%V\" in \"cost=%V\" does not exist; accepted are defined ones",
                                &name, &limit->cost->value);
        }
    }
    limit->zone->shadow = limit->zone->shadow || limit->shadow;
    limit->policy = limit->zone->policy;
    const Algorithm algorithm = limit->policy.algorithm;
    const bool leaky = algorithm == Algorithm::kLeakyBucket;
    if (limit->has_burst && !leaky && algorithm != Algorithm::kGcra) {
        return refuse_limit(cf, *limit,
                            "burst= for zone \"%V\" of %s; it is accepted with leaky_bucket and gcra",
                            &limit->zone_name, algorithm_name(algorithm));
    }
    if (limit->has_delay && !leaky) {
        return refuse_limit(cf, *limit, "%s for zone \"%V\" of %s; it is accepted with leaky_bucket",
                            limit->delay == kNoDelay ? "nodelay" : "delay=", &limit->zone_name,
                            algorithm_name(algorithm));
    }
    if (limit->has_burst) {
        limit->policy.burst = limit->burst;
    }
    if (leaky) {
        limit->policy.delay = limit->has_delay ? limit->delay : 0;
    }
    limit->single = is_single(limit->policy, limit->zone->layout);
    return true;
}

// The limit of a location that has one, and nothing else to decide; null if there is more to it.
AppliedLimit* lone_limit(const ngx_http_rate_limit_loc_conf_t& conf) {
    const bool lone = conf.limits != nullptr && conf.limits->nelts == 1 && !has_shadows(conf);
    return lone ? *static_cast<AppliedLimit**>(conf.limits->elts) : nullptr;
}

bool resolve_zone(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t* conf, Zone* zone) {
    if (zone->redis_name.len != 0) {
        zone->redis = find_redis(conf, zone->redis_name);
        if (zone->redis == nullptr) {
            const ngx_str_t names =
                names_of(cf, static_cast<RedisServer**>(conf->servers.elts), conf->servers.nelts);
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"rate_limit_zone\": \"redis=%V\" of zone \"%V\" is not defined; accepted are the "
                          "names of rate_limit_redis: %V in %V:%ui",
                          &zone->redis_name, &zone->name, &names, &zone->file, zone->line);
            return false;
        }
        // What is wrong with a server its requests say, too, unless there are none that ask it.
        zone->redis->background.quiet = zone->redis->background.quiet && !needs_unsent_counts(*zone);
        zone->redis->counts_instances = zone->redis->counts_instances || zone->on_error == OnError::kLocal;
    }
    const ngx_http_complex_value_t* values[] = {&zone->key, zone->rate};
    for (const ngx_http_complex_value_t* value : values) {
        const ngx_str_t name = value != nullptr ? ngx_str(unknown_variable(cf, value->value)) : ngx_str_t();
        if (name.len != 0) {
            ngx_log_error(
                NGX_LOG_EMERG, cf->log, 0,
                "\"rate_limit_zone\": variable \"$%V\" in \"%V\" of zone \"%V\" does not exist; "
                "accepted are variables that nginx, a module or the configuration defines in %V:%ui",
                &name, &value->value, &zone->name, &zone->file, zone->line);
            return false;
        }
    }
    zone_plan_memory(zone);
    return true;
}

// Finds the zone of every rate_limit and checks all that needs the whole configuration; false after an error
// was logged.
bool resolve_configuration(ngx_conf_t* cf) {
    auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_rate_limit_module));
    if (!resolve_keys(cf, *conf) || !resolve_tokens(cf, *conf)) {
        return false;
    }
    auto** zones = static_cast<Zone**>(conf->zones.elts);
    for (ngx_uint_t i = 0; i < conf->zones.nelts; i++) {
        if (!resolve_zone(cf, conf, zones[i])) {
            return false;
        }
    }
    auto** servers = static_cast<RedisServer**>(conf->servers.elts);
    for (ngx_uint_t i = 0; i < conf->servers.nelts; i++) {
        servers[i]->observed = conf->observed != 0;
    }
    auto** limits = static_cast<AppliedLimit**>(conf->limits.elts);
    for (ngx_uint_t i = 0; i < conf->limits.nelts; i++) {
        if (!resolve_limit(cf, conf, limits[i])) {
            return false;
        }
    }
    for (ngx_uint_t i = 0; i < conf->limits.nelts; i++) {
        if (limits[i]->zone->shadow && !limits[i]->shadow) {
            return refuse_limit(
                cf, *limits[i],
                "zone \"%V\" is a candidate; accepted are zones that no rate_limit_shadow has",
                &limits[i]->zone_name);
        }
    }
    for (ngx_uint_t i = 0; i < conf->servers.nelts; i++) {
        if (!check_redis_hosts(cf, *conf, *servers[i])) {
            return false;
        }
        describe_consequence(*conf, servers[i]);
    }
    // A client's level may stand as high as the most generous of its zone's limits let it rise.
    for (ngx_uint_t i = 0; i < conf->limits.nelts; i++) {
        std::uint32_t& ceiling = limits[i]->zone->policy.ceiling;
        ceiling = ngx_max(ceiling, limits[i]->policy.burst + 1);
    }
    for (ngx_uint_t i = 0; i < conf->limits.nelts; i++) {
        limits[i]->policy.ceiling = limits[i]->zone->policy.ceiling;
        // What was admitted under any of them is charged by the zone's own.
        std::uint32_t& burst = limits[i]->zone->policy.burst;
        burst = ngx_max(burst, limits[i]->policy.burst);
    }
    auto** locations = static_cast<ngx_http_rate_limit_loc_conf_t**>(conf->locations.elts);
    for (ngx_uint_t i = 0; i < conf->locations.nelts; i++) {
        locations[i]->lone_limit = lone_limit(*locations[i]);
    }
    warn_of_mistakes(cf, *conf);
    return true;
}

}  // namespace
}  // namespace rate_limit

extern "C" ngx_int_t ngx_http_rate_limit_check_configuration(ngx_conf_t* cf) {
    return rate_limit::resolve_configuration(cf) ? NGX_OK : NGX_ERROR;
}

extern "C" char* ngx_http_rate_limit(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_limit(cf, cmd, &static_cast<ngx_http_rate_limit_loc_conf_t*>(conf)->limits,
                                  false);
}

extern "C" char* ngx_http_rate_limit_shadow(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_limit(cf, cmd, &static_cast<ngx_http_rate_limit_loc_conf_t*>(conf)->shadows,
                                  true);
}
