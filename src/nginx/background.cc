// Starts the background tasks of a worker (sync, heartbeat, fleet changes), and stops them when it exits.
#include "nginx/background.h"

#include <memory>
#include <vector>

#include "fleet/sync_sender.h"
#include "lending/lease_keeper.h"
#include "nginx/clock.h"
#include "nginx/event_loop.h"

namespace rate_limit {

// The tasks of one server, which share a router.
struct Background {
    std::unique_ptr<redis::Router> router;
    std::vector<std::unique_ptr<PeriodicTask>> tasks;
    bool has_heartbeat = false;  // among the tasks
    std::vector<Zone*> zones;    // of the server
};

namespace {

constexpr redis::Milliseconds kBetweenWorkers = 50;
constexpr redis::Milliseconds kFallbackEvery = 200;  // for requests that the fallback has admitted

Background* background_of(RedisServer* server) {
    if (server->work == nullptr) {
        server->work = new Background;
        server->work->router.reset(make_redis_router(*server, server->background));
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

// A worker that shuts down gracefully may still run for hours, with an old configuration. Other workers take
// over its tasks at once.
void on_end(ngx_event_t* event) {
    auto* conf =
        static_cast<ngx_http_rate_limit_main_conf_t*>(static_cast<ngx_connection_t*>(event->data)->data);
    end_watch(conf);
    auto** servers = static_cast<RedisServer**>(conf->servers.elts);
    for (ngx_uint_t i = 0; i < conf->servers.nelts; i++) {
        if (servers[i]->work != nullptr) {
            for (const auto& task : servers[i]->work->tasks) {
                task->end();
            }
        }
    }
}

// nginx tells only idle connections that the worker shuts down. So this creates an idle connection without a
// socket.
bool watch_for_end(ngx_http_rate_limit_main_conf_t* conf) {
    if (conf->watch != nullptr || ngx_process != NGX_PROCESS_WORKER) {
        return true;
    }
    conf->watch = ngx_get_connection(0, ngx_cycle->log);
    if (conf->watch == nullptr) {
        return false;
    }
    conf->watch->fd = static_cast<ngx_socket_t>(-2);  // -1 means a free connection
    conf->watch->data = conf;
    conf->watch->idle = 1;
    conf->watch->read->handler = on_end;
    return true;
}

// Keeps the policies of the zones current in this worker: SyncSenders use them even while the worker has no
// requests.
void follow_all(void* work) {
    for (Zone* zone : static_cast<Background*>(work)->zones) {
        zone_follow(zone);
    }
}

// Starts to read changes of rates and resets of clients for the zones of a server, if it has any.
void start_following(const ngx_http_rate_limit_main_conf_t& conf, RedisServer* server) {
    std::vector<FleetZone> followed;
    std::vector<Zone*> zones;
    auto** all = static_cast<Zone**>(conf.zones.elts);
    for (ngx_uint_t i = 0; i < conf.zones.nelts; i++) {
        Zone* zone = all[i];
        if (zone->redis == server) {
            zones.push_back(zone);
            followed.push_back(fleet_zone(*zone));
        }
    }
    if (zones.empty()) {
        return;
    }
    Background* work = background_of(server);
    work->zones = std::move(zones);
    FleetChanges::Options options;
    options.prefix = server->options.prefix;
    options.instance = server->shared->membership.id();
    options.after = kBetweenWorkers * ngx_worker;
    options.each_time = follow_all;
    options.self = work;
    work->tasks.emplace_back(FleetChanges::make(&server->shared->changes, std::move(followed), options,
                                                work->router.get(), nginx_loop(), this_process()));
}

bool start_servers(ngx_http_rate_limit_main_conf_t* conf) {
    auto** servers = static_cast<RedisServer**>(conf->servers.elts);
    for (ngx_uint_t i = 0; i < conf->servers.nelts; i++) {
        if (!watch_for_end(conf)) {
            return false;
        }
        start_following(*conf, servers[i]);
    }
    return true;
}

// Starts to give back what idle clients of a zone have leased.
void keep_leases(Zone* zone) {
    Background* work = background_of(zone->redis);
    zone_connect(zone);
    work->tasks.emplace_back(LeaseKeeper::make(zone, zone->policy, kBetweenWorkers * ngx_worker,
                                               work->router.get(), nginx_loop(), this_process()));
}

bool start_zones(ngx_http_rate_limit_main_conf_t* conf) {
    auto** zones = static_cast<Zone**>(conf->zones.elts);
    for (ngx_uint_t i = 0; i < conf->zones.nelts; i++) {
        if (!needs_unsent_counts(*zones[i]) && !needs_leases(*zones[i])) {
            continue;
        }
        if (!watch_for_end(conf)) {
            return false;
        }
        if (needs_unsent_counts(*zones[i])) {
            start_background(zones[i]);
        }
        if (needs_leases(*zones[i])) {
            keep_leases(zones[i]);
        }
    }
    return true;
}

}  // namespace

void start_background(Zone* zone) {
    Background* work = background_of(zone->redis);
    SyncSender::Options options;
    options.zone = view(zone->name);
    options.prefix = zone->redis->options.prefix;
    options.every = zone->sync != 0 ? zone->sync : kFallbackEvery;
    options.later = kBetweenWorkers * ngx_worker;
    options.mode = zone->sync != 0 ? SyncLedger::Mode::kSync : SyncLedger::Mode::kFallback;
    work->tasks.emplace_back(SyncSender::make(zone->table, zone->policy, options, work->router.get(),
                                              nginx_loop(), this_process(), wall_clock));
    if (zone->redis->counts_instances && !work->has_heartbeat) {
        work->has_heartbeat = true;
        work->tasks.emplace_back(Heartbeat::make(zone->redis->membership(), options.prefix,
                                                 work->router.get(), nginx_loop(), this_process(),
                                                 options.later));
    }
}

FleetZone fleet_zone(const Zone& zone) {
    return {std::string(view(zone.name)),
            std::string(view(zone.rate_text)),
            &zone.policy,
            zone.layout,
            &zone.shared->live,
            zone.table,
            zone.denials,
            zone.leases};
}

redis::Router* background_router(RedisServer* server) { return background_of(server)->router.get(); }

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
    for (const auto& task : work->tasks) {
        task->stop();
    }
    // Fails the calls in flight, so their answers come before the tasks are deleted.
    work->router.reset();
    delete work;
    server->work = nullptr;
}

bool start_background(ngx_http_rate_limit_main_conf_t* conf) {
    return start_zones(conf) && start_servers(conf);
}

}  // namespace rate_limit
