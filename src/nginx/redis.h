// Redis servers as the configuration has them, and a worker's way to each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nginx/module.h"
#include "redis/connection.h"
#include "store/board.h"
#include "store/remote.h"

namespace rate_limit {

struct Background;

struct RedisServer {
    RedisServer() = default;
    ~RedisServer();
    RedisServer(const RedisServer&) = delete;
    RedisServer& operator=(const RedisServer&) = delete;

    ngx_str_t name = {};
    redis::Settings settings;
    redis::Settings sentinels;             // how to speak to Sentinels, if the address has any
    redis::Settings background;            // for what no request waits for
    redis::Settings background_sentinels;  // and how that speaks to Sentinels
    Remote::Options options;
    std::vector<std::string> addresses;  // numeric, as known when the configuration was read
    Remote* remote = nullptr;            // made by each worker when it first needs it
    RedisBoard* board = nullptr;
    bool counts_instances = false;          // that share it
    bool observed = false;                  // requests' calls are counted
    std::unique_ptr<RedisCounter> counter;  // of each worker, once it has a remote
    Background* work = nullptr;             // of each worker, if there is any

    // Null unless instances are counted.
    Membership* membership() const { return counts_instances ? &board->membership : nullptr; }
};

// The server of this name; null if there is none.
RedisServer* find_redis(const ngx_http_rate_limit_main_conf_t* conf, const ngx_str_t& name);

// This worker's way to a server; null if there is no memory.
Remote* redis_remote(RedisServer* server);

// A way of its own, with settings that are the server's but for some. Null if there is no memory.
redis::Service* make_redis_service(const RedisServer& server, const redis::Settings& settings);

}  // namespace rate_limit
