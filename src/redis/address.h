// Where a Redis is and as whom to speak to it, as an operator writes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rate_limit::redis {

// One of several servers that know the way to others.
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
    std::vector<Seed>
        seeds;  // Sentinels, or nodes of a cluster; empty if the server is where `host` or `path` says
    std::string primary;  // its name among the Sentinels; empty for a cluster
};

// Reads redis://[[user]:password@]host[:port][/db], unix:PATH,
// redis+cluster://[[user]:password@]host[:port],… or
// redis+sentinel://[[user]:password@]host[:port],…/primary[/db]. With rediss instead of redis, TLS. User and
// password may be percent-encoded.
// Returns null, or a sentence without a full stop that says what is wrong.
const char* parse_address(std::string_view text, Address* address);

// What parse_address accepts, for error messages.
extern const char kAddressAccepted[];

}  // namespace rate_limit::redis
