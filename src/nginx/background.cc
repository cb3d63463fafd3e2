// Starts the background tasks of a worker (sync, heartbeat, fleet changes), and stops them when it exits.
#include "nginx/background.h"

#include <memory>
#include <new>
#include <vector>

#include "nginx/clock.h"
#include "nginx/event_loop.h"
#include "store/sync_sender.h"

namespace rate_limit {

// One connection serves them all.
struct Background {
    std::unique_ptr<redis::Router> router;
    std::vector<std::unique_ptr<SyncSender>> sync_senders;
    std::unique_ptr<Heartbeat> heartbeat;
    std::unique_ptr<FleetChanges> fleet_changes;
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
        work->router.reset(make_redis_router(*server, server->background));
        if (work->router == nullptr) {
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
        for (const auto& sync_sender : work->sync_senders) {
            sync_sender->end();
        }
        if (work->heartbeat != nullptr) {
            work->heartbeat->end();
        }
        if (work->fleet_changes != nullptr) {
            work->fleet_changes->end();
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

// SyncSenders charge by the rate that a zone has, whether this worker has requests or not.
void follow_all(void* work) {
    for (Zone* zone : static_cast<Background*>(work)->zones) {
        zone_follow(zone);
    }
}

// Starts to follow what is changed for the zones of a server, if it has any.
bool start_following(const ngx_http_rate_limit_main_conf_t& conf, RedisServer* server) {
    std::vector<FleetZone> followed;
    std::vector<Zone*> zones;
    auto** all = static_cast<Zone**>(conf.zones.elts);
    for (ngx_uint_t i = 0; i < conf.zones.nelts; i++) {
        Zone* zone = all[i];
        if (zone->redis == server) {
            zones.push_back(zone);
            followed.push_back({std::string(view(zone->name)), std::string(view(zone->rate_text)),
                                &zone->policy, zone->layout, &zone->shared->live, zone->table,
                                zone->denials});
        }
    }
    Background* work = zones.empty() ? nullptr : background_of(server);
    if (work == nullptr) {
        return zones.empty();
    }
    work->zones = std::move(zones);
    FleetChanges::Options options;
    options.prefix = server->options.prefix;
    options.instance = server->shared->membership.id();
    options.after = kBetweenWorkers * ngx_worker;
    options.each_time = follow_all;
    options.self = work;
    work->fleet_changes.reset(FleetChanges::make(&server->shared->changes, std::move(followed), options,
                                                 work->router.get(), nginx_loop(), this_process()));
    return work->fleet_changes != nullptr;
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
        if (needs_unsent_counts(*zones[i]) && (!watch_for_end(conf) || !start_background(zones[i]))) {
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
    SyncSender::Options options;
    options.zone = view(zone->name);
    options.prefix = zone->redis->options.prefix;
    options.every = zone->sync != 0 ? zone->sync : kChargeLaterEvery;
    options.later = kBetweenWorkers * ngx_worker;
    options.mode = zone->sync != 0 ? SyncLedger::Mode::kSync : SyncLedger::Mode::kFallback;
    std::unique_ptr<SyncSender> sync_sender(SyncSender::make(
        zone->table, zone->policy, options, work->router.get(), nginx_loop(), this_process(), wall_clock));
    if (sync_sender == nullptr) {
        return false;
    }
    work->sync_senders.push_back(std::move(sync_sender));
    if (zone->redis->counts_instances && work->heartbeat == nullptr) {
        work->heartbeat.reset(Heartbeat::make(zone->redis->membership(), options.prefix, work->router.get(),
                                              nginx_loop(), this_process(), options.later));
        return work->heartbeat != nullptr;
    }
    return true;
}

redis::Router* background_router(RedisServer* server) {
    Background* work = background_of(server);
    return work != nullptr ? work->router.get() : nullptr;
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
    for (const auto& sync_sender : work->sync_senders) {
        sync_sender->stop();
    }
    if (work->heartbeat != nullptr) {
        work->heartbeat->stop();
    }
    if (work->fleet_changes != nullptr) {
        work->fleet_changes->stop();
    }
    // Answers all that is on its way.
    work->router.reset();
    delete work;
    server->work = nullptr;
}

bool start_background(ngx_http_rate_limit_main_conf_t* conf) {
    return start_zones(conf) && start_servers(conf);
}

}  // namespace rate_limit
