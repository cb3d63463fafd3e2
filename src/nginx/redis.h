// The servers of rate_limit_redis, and a worker's clients of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "connection/connection.h"
#include "lending/redis_lender.h"
#include "nginx/module.h"
#include "store/check_batcher.h"
#include "store/shared_state.h"

namespace rate_limit {

struct Background;

struct RedisServer {
    RedisServer() = default;
    ~RedisServer();
    RedisServer(const RedisServer&) = delete;
    RedisServer& operator=(const RedisServer&) = delete;

    ngx_str_t name = {};
    redis::Settings settings;
    redis::Settings sentinels;             // of connections to Sentinels, if the URL has any
    redis::Settings background;            // of connections for background calls, which no request waits for
    redis::Settings background_sentinels;  // of connections to Sentinels for background calls
    redis::Consequence consequence;        // once the whole configuration is read
    redis::Consequence background_consequence;  // of failed background calls
    redis::Journal journal;                     // of each worker
    CheckBatcher::Options options;
    std::vector<std::string> addresses;   // numeric, as resolved when the configuration was read
    std::vector<std::string> unresolved;  // hosts of the URL that had no address then
    bool has_address = false;             // at least one host of the URL has an address
    ngx_str_t file = {};                  // position of the directive
    ngx_uint_t line = 0;
    CheckBatcher* batcher = nullptr;  // created by each worker on first use
    RedisSharedState* shared = nullptr;
    bool counts_instances = false;          // a zone has on_error=local, which needs the number of instances
    bool observed = false;                  // calls for requests are counted
    std::unique_ptr<RedisCounter> counter;  // of each worker; null without a batcher
    std::vector<std::unique_ptr<RedisLender>> lenders;  // of each worker: one for each zone with leases
    Background* work = nullptr;  // background tasks of each worker; null if there are none
    Micros look_denied = 0;      // when Redis last refused this worker the permission to look up a client

    // Null unless counts_instances.
    Membership* membership() const { return counts_instances ? &shared->membership : nullptr; }
};

// The server of this name; null if there is none.
RedisServer* find_redis(const ngx_http_rate_limit_main_conf_t* conf, const ngx_str_t& name);

// This worker's batcher of a server. The first call creates it.
CheckBatcher* redis_batcher(RedisServer* server);

// Connects to every server that decides requests of a zone. Waits for their answers, but only for a short
// time: the starting worker accepts no connections until then.
void open_redis(ngx_http_rate_limit_main_conf_t* conf);

// Closes the connections of this worker.
void close_redis(ngx_http_rate_limit_main_conf_t* conf);

// Creates another client of a server, with settings derived from those of the server.
redis::Router* make_redis_router(const RedisServer& server, const redis::Settings& settings);

}  // namespace rate_limit
