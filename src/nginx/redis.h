// Redis servers as the configuration has them, and a worker's way to each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nginx/module.h"
#include "redis/connection.h"
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
    redis::Settings sentinels;                  // how to speak to Sentinels, if the address has any
    redis::Settings background;                 // for what no request waits for
    redis::Settings background_sentinels;       // and how that speaks to Sentinels
    redis::Consequence consequence;             // once the whole configuration is read
    redis::Consequence background_consequence;  // of calls that no request waits for
    redis::Journal journal;                     // of each worker
    CheckBatcher::Options options;
    std::vector<std::string> addresses;   // numeric, as known when the configuration was read
    std::vector<std::string> unresolved;  // hosts of the URL that had no address then
    bool has_address = false;             // at least one host of the URL has one
    ngx_str_t file = {};                  // where the directive stands
    ngx_uint_t line = 0;
    CheckBatcher* batcher = nullptr;  // made by each worker when it first needs it
    RedisSharedState* shared = nullptr;
    bool counts_instances = false;          // that share it
    bool observed = false;                  // requests' calls are counted
    std::unique_ptr<RedisCounter> counter;  // of each worker, once it has a batcher
    Background* work = nullptr;             // of each worker, if there is any
    Micros look_denied = 0;                 // when this worker was last not let look for a client

    // Null unless instances are counted.
    Membership* membership() const { return counts_instances ? &shared->membership : nullptr; }
};

// The server of this name; null if there is none.
RedisServer* find_redis(const ngx_http_rate_limit_main_conf_t* conf, const ngx_str_t& name);

// Says what it means for the zones of a server that it cannot be asked. Only once all zones are known.
void describe_consequence(const ngx_http_rate_limit_main_conf_t& conf, RedisServer* server);

// This worker's way to a server; null if there is no memory.
CheckBatcher* redis_batcher(RedisServer* server);

// Connects to every server that a zone asks for each request. Waits until they have answered, but not for
// long: a worker that starts accepts no connection meanwhile.
void open_redis(ngx_http_rate_limit_main_conf_t* conf);

// Closes the connections of this worker.
void close_redis(ngx_http_rate_limit_main_conf_t* conf);

// A way of its own, with settings that are the server's but for some. Null if there is no memory.
redis::Router* make_redis_router(const RedisServer& server, const redis::Settings& settings);

}  // namespace rate_limit
