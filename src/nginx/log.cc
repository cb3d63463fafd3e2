// The log lines, in the words of limit_req.
#include "nginx/answer.h"
#include "nginx/clock.h"

namespace rate_limit {
namespace {

u_char* print_wait(u_char* at, u_char* end, Micros wait) {
    if (wait == kNever) {
        return ngx_slprintf(at, end, "never: the cost is above the limit");
    }
    const Micros milliseconds = (wait + 999) / 1000;
    return ngx_slprintf(at, end, "in %L.%03Ls", static_cast<int64_t>(milliseconds / 1000),
                        static_cast<int64_t>(milliseconds % 1000));
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

void log_decision(ngx_http_request_t* r, const RequestState& state, std::uint32_t index,
                  const ngx_str_t& key) {
    const ngx_http_rate_limit_loc_conf_t* conf = location_conf(r);
    const bool rejected = state.status == Status::kRejected || state.status == Status::kRejectedDryRun;
    const bool dry_run = state.status == Status::kRejectedDryRun || state.status == Status::kDelayedDryRun;
    ngx_uint_t level = conf->log_level;
    if (!rejected && level != NGX_LOG_INFO) {
        level++;
    }
    ngx_log_t* log = r->connection->log;
    if (log->log_level < level) {
        return;
    }
    NameRoom room;
    const LogText name(ngx_str(shown_name(view(key), &room)));
    const DecidedLimit& limit = state.limits[index];
    u_char wait[64];
    const Micros until = rejected ? limit.decision.retry_after : limit.decision.delay;
    const ngx_str_t when = {static_cast<std::size_t>(print_wait(wait, wait + sizeof(wait), until) - wait),
                            wait};
    const std::uint64_t excess = limit.decision.excess_milli;
    ngx_log_error(level, log, 0, "%s%s, excess: %uL.%03uL%s by zone \"%V\", key \"%V\", algorithm %s, %s %V",
                  rejected ? "limiting requests" : "delaying request", dry_run ? ", dry run" : "",
                  excess / 1000, excess % 1000, rejected ? "" : ",", &limit.applied->zone->name,
                  &name.escaped, algorithm_name(limit.applied->policy.algorithm),
                  rejected ? "may return" : "goes on", &when);
}

}  // namespace rate_limit
