// The log lines of decisions.
#pragma once

#include "request/request.h"

namespace rate_limit {

constexpr std::size_t kLongestLogged = 128;  // bytes of text from a client that are logged

// Writes text as nginx writes variables to logs: quotes, backslashes and all bytes that are not printable
// ASCII become \xHH. `at` must have room for four times the size of the text. Returns the end.
u_char* print_escaped(u_char* at, std::string_view text);

// Text from a client as print_escaped() writes it, cut after kLongestLogged bytes of input.
struct LogText {
    explicit LogText(const ngx_str_t& text);

    // The name of a client of a zone, as shown_name() returns it. If the key of the zone is an address, the
    // text is the address in its usual notation.
    LogText(const Zone& zone, std::string_view client);

    ngx_str_t escaped = {};
    u_char buffer[4 * kLongestLogged + 3];
};

// Logs a rejection or a delay by one of the request's limits. `status` tells which, and whether in a dry run.
void log_decision(ngx_http_request_t* r, Status status, const Limit& limit);

// Whether debug lines of requests are logged. A line on the request path costs a test of this.
inline bool is_debugged([[maybe_unused]] ngx_http_request_t* r) {
#if (NGX_DEBUG)
    return (r->connection->log->log_level & NGX_LOG_DEBUG_HTTP) != 0;
#else
    return false;
#endif
}

// Debug lines: a limit that is about to be decided, and what became of a limit.
void debug_limit(ngx_http_request_t* r, const Limit& limit);
void debug_decision(ngx_http_request_t* r, const Limit& limit);

// Write a debug line about a charge that is settled at a cost, or given back.
void debug_settled(ngx_http_request_t* r, const Limit& limit, std::uint64_t actual);
void debug_refunded(ngx_http_request_t* r, const Limit& limit);

}  // namespace rate_limit
