// Makes couriers, heartbeats and followers when a worker starts, and ends them with it.
#include "nginx/background.h"

#include <memory>
#include <new>
#include <vector>

#include "nginx/clock.h"
#include "nginx/event_loop.h"
#include "store/courier.h"

namespace rate_limit {

// One connection serves them all.
struct Background {
    std::unique_ptr<redis::Service> service;
    std::vector<std::unique_ptr<Courier>> couriers;
    std::unique_ptr<Instances> instances;
    std::unique_ptr<Follower> follower;
    std::vector<Zone*> zones;  // that follow
};

namespace {

constexpr redis::Milliseconds kBetweenWorkers = 50;
constexpr redis::Milliseconds kChargeLaterEvery = 200;  // what was admitted while Redis was away

Background* background_of(RedisServer* server) {
    if (server->work == nullptr) {
        auto work = std::unique_ptr<Background>(new (std::nothrow) Background);
        if (work == nullptr) {
            return nullptr;
        }
        work->service.reset(make_redis_service(*server, server->background));
        if (work->service == nullptr) {
            return nullptr;
        }
        server->work = work.release();
    }
    return server->work;
}

void end_watch(ngx_http_rate_limit_main_conf_t* conf) {
    if (conf->watch != nullptr) {
        conf->watch->fd = 0;
        ngx_free_connection(conf->watch);
        conf->watch->fd = static_cast<ngx_socket_t>(-1);
        conf->watch = nullptr;
    }
}

// A worker that is about to end may live on for long: others go on with its work, who may know better than an
// old configuration.
void on_end(ngx_event_t* event) {
    auto* conf =
        static_cast<ngx_http_rate_limit_main_conf_t*>(static_cast<ngx_connection_t*>(event->data)->data);
    end_watch(conf);
    auto** servers = static_cast<RedisServer**>(conf->servers.elts);
    for (ngx_uint_t i = 0; i < conf->servers.nelts; i++) {
        Background* work = servers[i]->work;
        if (work == nullptr) {
            continue;
        }
        for (const auto& courier : work->couriers) {
            courier->end();
        }
        if (work->instances != nullptr) {
            work->instances->end();
        }
        if (work->follower != nullptr) {
            work->follower->end();
        }
    }
}

// nginx tells nobody but idle connections that the worker is about to end, so this is one, without a socket.
bool watch_for_end(ngx_http_rate_limit_main_conf_t* conf) {
    if (conf->watch != nullptr || ngx_process != NGX_PROCESS_WORKER) {
        return true;
    }
    conf->watch = ngx_get_connection(0, ngx_cycle->log);
    if (conf->watch == nullptr) {
        return false;
    }
    conf->watch->fd = static_cast<ngx_socket_t>(-2);  // -1 is of connections that are free
    conf->watch->data = conf;
    conf->watch->idle = 1;
    conf->watch->read->handler = on_end;
    return true;
}

// Couriers charge by the rate that a zone has, whether this worker has requests or not.
void follow_all(void* work) {
    for (Zone* zone : static_cast<Background*>(work)->zones) {
        zone_follow(zone);
    }
}

// Starts to follow what is changed for the zones of a server, if it has any.
bool start_following(const ngx_http_rate_limit_main_conf_t& conf, RedisServer* server) {
    std::vector<FollowedZone> followed;
    std::vector<Zone*> zones;
    auto** all = static_cast<Zone**>(conf.zones.elts);
    for (ngx_uint_t i = 0; i < conf.zones.nelts; i++) {
        Zone* zone = all[i];
        if (zone->redis == server) {
            zones.push_back(zone);
            followed.push_back({std::string(view(zone->name)), std::string(view(zone->rate_text)),
                                &zone->policy, zone->shape, &zone->board->live, zone->table, zone->denials});
        }
    }
    Background* work = zones.empty() ? nullptr : background_of(server);
    if (work == nullptr) {
        return zones.empty();
    }
    work->zones = std::move(zones);
    Follower::Options options;
    options.prefix = server->options.prefix;
    options.instance = server->board->membership.id();
    options.after = kBetweenWorkers * ngx_worker;
    options.each_time = follow_all;
    options.self = work;
    work->follower.reset(Follower::make(&server->board->following, std::move(followed), options,
                                        work->service.get(), nginx_loop(), zone_host()));
    return work->follower != nullptr;
}

bool start_servers(ngx_http_rate_limit_main_conf_t* conf) {
    auto** servers = static_cast<RedisServer**>(conf->servers.elts);
    for (ngx_uint_t i = 0; i < conf->servers.nelts; i++) {
        if (!watch_for_end(conf) || !start_following(*conf, servers[i])) {
            return false;
        }
    }
    return true;
}

bool start_zones(ngx_http_rate_limit_main_conf_t* conf) {
    auto** zones = static_cast<Zone**>(conf->zones.elts);
    for (ngx_uint_t i = 0; i < conf->zones.nelts; i++) {
        if (needs_accounts(*zones[i]) && (!watch_for_end(conf) || !start_background(zones[i]))) {
            return false;
        }
    }
    return true;
}

}  // namespace

bool start_background(Zone* zone) {
    Background* work = background_of(zone->redis);
    if (work == nullptr) {
        return false;
    }
    Courier::Options options;
    options.zone = view(zone->name);
    options.prefix = zone->redis->options.prefix;
    options.every = zone->sync != 0 ? zone->sync : kChargeLaterEvery;
    options.later = kBetweenWorkers * ngx_worker;
    options.mode = zone->sync != 0 ? Reconciler::Mode::kSync : Reconciler::Mode::kFallback;
    std::unique_ptr<Courier> courier(Courier::make(zone->table, zone->policy, options, work->service.get(),
                                                   nginx_loop(), zone_host(), wall_clock));
    if (courier == nullptr) {
        return false;
    }
    work->couriers.push_back(std::move(courier));
    if (zone->redis->counts_instances && work->instances == nullptr) {
        work->instances.reset(Instances::make(zone->redis->membership(), options.prefix, work->service.get(),
                                              nginx_loop(), zone_host(), options.later));
        return work->instances != nullptr;
    }
    return true;
}

redis::Service* background_service(RedisServer* server) {
    Background* work = background_of(server);
    return work != nullptr ? work->service.get() : nullptr;
}

void stop_background(ngx_cycle_t* cycle) {
    auto* conf = cycle->conf_ctx != nullptr
                     ? static_cast<ngx_http_rate_limit_main_conf_t*>(
                           ngx_http_cycle_get_module_main_conf(cycle, ngx_http_rate_limit_module))
                     : nullptr;
    if (conf == nullptr) {
        return;
    }
    end_watch(conf);
    auto** servers = static_cast<RedisServer**>(conf->servers.elts);
    for (ngx_uint_t i = 0; i < conf->servers.nelts; i++) {
        stop_background(servers[i]);
        if (servers[i]->counter != nullptr) {
            servers[i]->counter->stop();
        }
    }
}

void stop_background(RedisServer* server) {
    Background* work = server->work;
    if (work == nullptr) {
        return;
    }
    for (const auto& courier : work->couriers) {
        courier->stop();
    }
    if (work->instances != nullptr) {
        work->instances->stop();
    }
    if (work->follower != nullptr) {
        work->follower->stop();
    }
    // Answers all that is on its way.
    work->service.reset();
    delete work;
    server->work = nullptr;
}

}  // namespace rate_limit

extern "C" ngx_int_t ngx_http_rate_limit_init_process(ngx_cycle_t* cycle) {
    auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_cycle_get_module_main_conf(cycle, ngx_http_rate_limit_module));
    const bool serves = ngx_process == NGX_PROCESS_WORKER || ngx_process == NGX_PROCESS_SINGLE;
    if (conf == nullptr || !serves) {
        return NGX_OK;
    }
    if (!rate_limit::start_zones(conf) || !rate_limit::start_servers(conf)) {
        return NGX_ERROR;
    }
    rate_limit::open_redis(conf);
    return NGX_OK;
}
