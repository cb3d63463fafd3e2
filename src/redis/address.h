// Where a Redis is and as whom to speak to it, as an operator writes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rate_limit::redis {

struct Address {
    std::string host;  // a name or a numeric address without brackets; empty for a unix socket
    std::uint16_t port = 6379;
    std::string path;  // of a unix socket, else empty
    std::string user;  // empty for the default user
    std::string password;
    std::uint32_t database = 0;
    bool tls = false;
};

// Reads redis://[[user]:password@]host[:port][/db], rediss://… or unix:PATH. User and password may be
// percent-encoded. Returns null, or a sentence without a full stop that says what is wrong.
const char* parse_address(std::string_view text, Address* address);

// What parse_address accepts, for error messages.
extern const char kAddressAccepted[];

}  // namespace rate_limit::redis
