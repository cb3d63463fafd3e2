// The log lines of decisions.
#pragma once

#include "nginx/request.h"

namespace rate_limit {

constexpr std::size_t kLongestLogged = 128;  // bytes of a client's text that are logged

// Writes text as nginx writes variables to logs: what is not plain ASCII, and quotes and backslashes, as
// \xHH. `at` has room for four times its size. Returns the end.
u_char* print_escaped(u_char* at, std::string_view text);

// Text of a client as nginx writes variables to logs: what is not plain ASCII as \xHH.
struct LogText {
    explicit LogText(const ngx_str_t& text);

    // A client of a zone, whose name is as shown_name gives it: an address in the usual notation, where the
    // zone's key is an address.
    LogText(const Zone& zone, std::string_view client);

    ngx_str_t escaped = {};
    u_char buffer[4 * kLongestLogged + 3];
};

// Logs a rejection or a delay by one of the request's limits.
void log_decision(ngx_http_request_t* r, const RequestState& state, const Limit& limit);

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

}  // namespace rate_limit
