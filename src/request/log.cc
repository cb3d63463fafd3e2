// The log lines of decisions. Up to the address of the client, they have the format of limit_req.
#include "request/log.h"

#include <utility>

#include "identity/address.h"
#include "nginx/clock.h"

namespace rate_limit {
namespace {

// Prints how long a rejected request must wait, or an admitted request is delayed.
u_char* print_wait(u_char* at, u_char* end, const Limit& limit, bool rejected) {
    const Micros wait = rejected ? limit.decision.retry_after : limit.decision.delay;
    if (wait == kNever) {
        return ngx_slprintf(at, end, "never: the cost %uL is above the limit %uL", limit.cost,
                            limit.decision.limit);
    }
    const Micros milliseconds = (wait + 999) / 1000;
    return ngx_slprintf(at, end, "in %L.%03Ls", static_cast<int64_t>(milliseconds / 1000),
                        static_cast<int64_t>(milliseconds % 1000));
}

// The part of a line that follows the address of the client.
struct Details {
    ngx_str_t text;
    ngx_http_log_handler_pt rest;  // prints the text that nginx adds: the server, the request and so on
};

const Details* details = nullptr;  // null unless this process is writing a line

// Replaces the log handler of the request, which nginx calls after it has written the address of the client.
u_char* print_details(ngx_http_request_t* r, ngx_http_request_t* current, u_char* at, std::size_t room) {
    u_char* end = ngx_snprintf(at, room, "%V", &details->text);
    return details->rest(r, current, end, room - static_cast<std::size_t>(end - at));
}

// Logs a line with `text` after the address of the client. Filters for limit_req, such as that of fail2ban,
// expect the address right after the zone.
template <class... Arguments>
void log_with_details(ngx_http_request_t* r, ngx_uint_t level, const ngx_str_t& text, const char* format,
                      Arguments... arguments) {
    ngx_http_request_t* main = r->main;
    ngx_log_t* log = r->connection->log;
    const Details own = {text, main->log_handler};
    // The action of an earlier subrequest, such as that of auth_request, would be in front of the address.
    char* const action = std::exchange(log->action, nullptr);
    details = &own;
    main->log_handler = print_details;
    ngx_log_error(level, log, 0, format, arguments...);
    main->log_handler = own.rest;
    details = nullptr;
    log->action = action;
}

}  // namespace

u_char* print_escaped(u_char* at, std::string_view text) {
    static const char kHex[] = "0123456789ABCDEF";
    for (const char byte : text) {
        const auto c = static_cast<u_char>(byte);
        if (c >= ' ' && c <= '~' && c != '"' && c != '\\') {
            *at++ = c;
            continue;
        }
        *at++ = '\\';
        *at++ = 'x';
        *at++ = static_cast<u_char>(kHex[c >> 4]);
        *at++ = static_cast<u_char>(kHex[c & 15]);
    }
    return at;
}

LogText::LogText(const ngx_str_t& text) {
    const std::size_t size = ngx_min(text.len, kLongestLogged);
    u_char* at = print_escaped(buffer, view(text).substr(0, size));
    if (size < text.len) {
        at = ngx_cpymem(at, "...", 3);
    }
    escaped = {static_cast<std::size_t>(at - buffer), buffer};
}

LogText::LogText(const Zone& zone, std::string_view client) {
    char address[identity::kLongestPlain];
    const std::size_t size = zone.by_address ? identity::print_plain_address(client, address) : 0;
    u_char* at = size != 0 ? ngx_cpymem(buffer, address, size) : print_escaped(buffer, client);
    escaped = {static_cast<std::size_t>(at - buffer), buffer};
}

void log_decision(ngx_http_request_t* r, Status status, const Limit& limit) {
    const ngx_http_rate_limit_loc_conf_t* conf = location_conf(r);
    const bool rejected = status == Status::kRejected || status == Status::kRejectedDryRun;
    const bool dry_run = is_dry_run(status);
    ngx_uint_t level = conf->log_level;
    if (!rejected && level != NGX_LOG_INFO) {
        level++;
    }
    ngx_log_t* log = r->connection->log;
    if (log->log_level < level) {
        return;
    }
    NameRoom room;
    const LogText name(zone_of(limit), shown_name(limit.client, &room));
    u_char text[sizeof(LogText::buffer) + 128];
    u_char* const text_end = text + sizeof(text);
    u_char* end = ngx_slprintf(text, text_end, ", key \"%V\", algorithm %s, %s ", &name.escaped,
                               algorithm_name(limit.policy->algorithm), rejected ? "may return" : "goes on");
    end = print_wait(end, text_end, limit, rejected);
    const std::uint64_t excess = limit.decision.excess_milli;
    log_with_details(r, level, {static_cast<std::size_t>(end - text), text},
                     "%s%s, excess: %uL.%03uL%s by zone \"%V\"",
                     rejected ? "limiting requests" : "delaying request", dry_run ? ", dry run" : "",
                     excess / 1000, excess % 1000, rejected ? "" : ",", &zone_of(limit).name);
}

[[gnu::cold]] void debug_limit([[maybe_unused]] ngx_http_request_t* r, [[maybe_unused]] const Limit& limit) {
#if (NGX_DEBUG)
    NameRoom room;
    char rates[kLongestRates + 1];
    rates[print_rates(limit.policy->rates, rates)] = '\0';
    const LogText name(zone_of(limit), shown_name(limit.client, &room));
    ngx_log_debug5(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "rate_limit: zone \"%V\", key \"%V\", %s, rate %s, cost %uL", &zone_of(limit).name,
                   &name.escaped, algorithm_name(limit.policy->algorithm), rates, limit.cost);
#endif
}

[[gnu::cold]] void debug_decision([[maybe_unused]] ngx_http_request_t* r,
                                  [[maybe_unused]] const Limit& limit) {
#if (NGX_DEBUG)
    if (limit.decided_by == DecidedBy::kNobody) {
        ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0, "rate_limit: zone \"%V\" not decided: %s",
                       &zone_of(limit).name,
                       limit.reason != kNoReason ? reason_name(limit.reason) : "not asked");
        return;
    }
    const Decision& decision = limit.decision;
    ngx_log_debug7(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "rate_limit: zone \"%V\" %s by %s, %uL of %uL left, delay %Lus, retry after %Lus",
                   &zone_of(limit).name, decision.allowed ? "allowed" : "rejected",
                   decided_by_name(limit.decided_by), decision.remaining, decision.limit,
                   static_cast<int64_t>(decision.delay), static_cast<int64_t>(decision.retry_after));
#endif
}

[[gnu::cold]] void debug_settled([[maybe_unused]] ngx_http_request_t* r, [[maybe_unused]] const Limit& limit,
                                 [[maybe_unused]] std::uint64_t actual) {
    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "rate_limit: zone \"%V\" settled: charged %uL, cost %uL", &zone_of(limit).name, limit.cost,
                   actual);
}

[[gnu::cold]] void debug_refunded([[maybe_unused]] ngx_http_request_t* r,
                                  [[maybe_unused]] const Limit& limit) {
    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0, "rate_limit: zone \"%V\" gives back %uL",
                   &zone_of(limit).name, limit.cost);
}

}  // namespace rate_limit
