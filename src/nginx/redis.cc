// Makes a worker's clients when it starts, or when they are first needed, and ends them with it.
#include "nginx/redis.h"

#include <new>

#include "nginx/background.h"
#include "nginx/event_loop.h"
#include "nginx/shadow.h"
#include "redis/client.h"
#include "redis/cluster.h"
#include "redis/sentinels.h"
#include "redis/tls.h"

namespace rate_limit {
namespace {

// The master tells old workers to leave 100 ms after it has started new ones. So long old workers serve.
constexpr redis::Milliseconds kOpenWithin = 80;

bool is_opening(void* self) {
    const auto* conf = static_cast<const ngx_http_rate_limit_main_conf_t*>(self);
    auto** servers = static_cast<RedisServer**>(conf->servers.elts);
    for (ngx_uint_t i = 0; i < conf->servers.nelts; i++) {
        if (servers[i]->remote != nullptr && servers[i]->remote->service().opening()) {
            return true;
        }
    }
    return false;
}

}  // namespace

RedisServer::~RedisServer() {
    stop_background(this);
    delete remote;
    if (settings.tls != nullptr) {
        redis::free_tls(settings.tls);
    }
}

RedisServer* find_redis(const ngx_http_rate_limit_main_conf_t* conf, const ngx_str_t& name) {
    auto** servers = static_cast<RedisServer**>(conf->servers.elts);
    for (ngx_uint_t i = 0; i < conf->servers.nelts; i++) {
        if (view(servers[i]->name) == view(name)) {
            return servers[i];
        }
    }
    return nullptr;
}

redis::Service* make_redis_service(const RedisServer& server, const redis::Settings& settings) {
    const redis::Address& address = server.settings.address;
    if (address.seeds.empty()) {
        return redis::Client::make(settings, server.addresses, nginx_loop());
    }
    if (address.primary.empty()) {
        return redis::Cluster::make(settings, address.seeds, nginx_loop());
    }
    const redis::Settings& speaking = settings.quiet ? server.background_sentinels : server.sentinels;
    auto* sentinels = redis::Sentinels::make(speaking, address.seeds, address.primary, nginx_loop());
    return sentinels != nullptr
               ? redis::Client::make_with(settings, std::unique_ptr<redis::Locator>(sentinels), nginx_loop())
               : nullptr;
}

Remote* redis_remote(RedisServer* server) {
    if (server->remote == nullptr) {
        if (server->observed && server->counter == nullptr) {
            server->counter.reset(new (std::nothrow) RedisCounter(
                &server->board->statistics, static_cast<unsigned>(ngx_worker), zone_host()));
            server->settings.watcher = server->counter.get();
            server->options.counter = server->counter.get();
        }
        redis::Service* service = make_redis_service(*server, server->settings);
        if (service != nullptr) {
            server->remote = Remote::make(service, server->options, nginx_loop());
            if (server->remote == nullptr) {
                delete service;
            }
        }
    }
    return server->remote;
}

void open_redis(ngx_http_rate_limit_main_conf_t* conf) {
    auto** zones = static_cast<Zone**>(conf->zones.elts);
    for (ngx_uint_t i = 0; i < conf->zones.nelts; i++) {
        Remote* remote = asks_redis(*zones[i]) ? redis_remote(zones[i]->redis) : nullptr;
        if (remote != nullptr) {
            remote->service().open();
        }
    }
    run_nginx_loop(kOpenWithin, is_opening, conf);
}

}  // namespace rate_limit

// Sockets that are still open when a worker ends are reported as left behind.
extern "C" void ngx_http_rate_limit_exit_process(ngx_cycle_t* cycle) {
    auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_cycle_get_module_main_conf(cycle, ngx_http_rate_limit_module));
    if (conf == nullptr) {
        return;
    }
    rate_limit::stop_background(cycle);
    rate_limit::end_shadows();
    auto** servers = static_cast<rate_limit::RedisServer**>(conf->servers.elts);
    for (ngx_uint_t i = 0; i < conf->servers.nelts; i++) {
        delete servers[i]->remote;
        servers[i]->remote = nullptr;
    }
}
