// The address of a Redis as configured: host or socket, credentials, database.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rate_limit::redis {

// A server that is asked for the addresses of others: a Sentinel, or a node of a cluster.
struct Seed {
    std::string host;
    std::uint16_t port = 0;
    std::vector<std::string> addresses = {};  // numeric, as known so far; parse_address leaves it empty
};

struct Address {
    std::string host;  // a name or a numeric address without brackets; empty for a unix socket
    std::uint16_t port = 6379;
    std::string path;  // of a unix socket, else empty
    std::string user;  // empty for the default user
    std::string password;
    std::uint32_t database = 0;
    bool tls = false;
    std::vector<Seed> seeds;  // Sentinels, or nodes of a cluster; empty if `host` or `path` is the server
    std::string primary;      // the name by which the Sentinels know it; empty for a cluster
};

// Parses redis://[[user]:password@]host[:port][/db], unix:PATH,
// redis+cluster://[[user]:password@]host[:port],… or
// redis+sentinel://[[user]:password@]host[:port],…/primary[/db]. With rediss instead of redis, TLS is used.
// User and password may be percent-encoded. Returns null, or what is wrong as a sentence without a full stop.
const char* parse_address(std::string_view text, Address* address);

// The forms that parse_address accepts, for error messages: "it must be …".
extern const char kAddressAccepted[];

}  // namespace rate_limit::redis
