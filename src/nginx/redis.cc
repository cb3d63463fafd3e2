// Creates a worker's Redis clients when the worker starts or first needs them, and closes them when it exits.
#include "nginx/redis.h"

#include <algorithm>

#include "cluster/cluster.h"
#include "cluster/sentinels.h"
#include "connection/tls.h"
#include "nginx/background.h"
#include "nginx/collections.h"
#include "nginx/event_loop.h"
#include "redis/client.h"

namespace rate_limit {
namespace {

// On reload, the master stops old workers 100 ms after it has started new ones. Old workers serve until then.
constexpr redis::Milliseconds kOpenWithin = 80;

bool is_opening(void* self) {
    const auto* conf = static_cast<const ngx_http_rate_limit_main_conf_t*>(self);
    const auto servers = pointers<RedisServer>(conf->servers);
    return std::any_of(servers.begin(), servers.end(), [](const RedisServer* server) {
        return server->batcher != nullptr && server->batcher->router().opening();
    });
}

void debug_send([[maybe_unused]] std::size_t groups, [[maybe_unused]] std::size_t keys) {
    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0, "rate_limit: call Redis for %uz requests, %uz keys",
                   groups, keys);
}

void debug_reply([[maybe_unused]] std::size_t groups, [[maybe_unused]] redis::Error error) {
    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0, "rate_limit: reply of Redis for %uz requests: %s",
                   groups, error == redis::Error::kNone ? "decided" : redis::error_name(error));
}

}  // namespace

RedisServer::~RedisServer() {
    stop_background(this);
    lenders.clear();
    delete batcher;
    if (settings.tls != nullptr) {
        redis::free_tls(settings.tls);
    }
}

RedisServer* find_redis(const ngx_http_rate_limit_main_conf_t* conf, const ngx_str_t& name) {
    for (RedisServer* server : pointers<RedisServer>(conf->servers)) {
        if (view(server->name) == view(name)) {
            return server;
        }
    }
    return nullptr;
}

redis::Router* make_redis_router(const RedisServer& server, const redis::Settings& settings) {
    const redis::Address& address = server.settings.address;
    if (address.seeds.empty()) {
        return redis::Client::make(settings, server.addresses, nginx_loop());
    }
    if (address.primary.empty()) {
        return new redis::Cluster(settings, address.seeds, nginx_loop());
    }
    const redis::Settings& speaking = settings.quiet ? server.background_sentinels : server.sentinels;
    auto sentinels =
        std::make_unique<redis::Sentinels>(speaking, address.seeds, address.primary, nginx_loop());
    return redis::Client::make_with(settings, std::move(sentinels), nginx_loop());
}

CheckBatcher* redis_batcher(RedisServer* server) {
    if (server->batcher == nullptr) {
        if ((ngx_cycle->log->log_level & NGX_LOG_DEBUG_HTTP) != 0) {
            server->options.on_send = debug_send;
            server->options.on_reply = debug_reply;
        }
        if (server->observed && server->counter == nullptr) {
            server->counter = std::make_unique<RedisCounter>(
                &server->shared->statistics, static_cast<unsigned>(ngx_worker), this_process());
            server->settings.observer = server->counter.get();
            server->options.counter = server->counter.get();
        }
        server->batcher =
            new CheckBatcher(make_redis_router(*server, server->settings), server->options, nginx_loop());
    }
    return server->batcher;
}

void open_redis(ngx_http_rate_limit_main_conf_t* conf) {
    for (const Zone* zone : pointers<Zone>(conf->zones)) {
        if (asks_redis(*zone)) {
            redis_batcher(zone->redis)->router().open();
        }
    }
    run_nginx_loop(kOpenWithin, is_opening, conf);
}

void close_redis(ngx_http_rate_limit_main_conf_t* conf) {
    for (Zone* zone : pointers<Zone>(conf->zones)) {
        zone->batcher = zone->corrector = nullptr;
        zone->lender = nullptr;
    }
    for (RedisServer* server : pointers<RedisServer>(conf->servers)) {
        server->lenders.clear();
        delete server->batcher;
        server->batcher = nullptr;
    }
}

}  // namespace rate_limit
