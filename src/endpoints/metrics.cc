// The location that tells numbers, as Prometheus reads them.
#include <initializer_list>
#include <string>

#include "nginx/counters.h"
#include "nginx/module.h"

namespace rate_limit {
namespace {

struct Label {
    const char* name;
    std::string_view value;
};

using Labels = std::initializer_list<Label>;

// Backslashes, quotes and newlines of a value are escaped.
void print_label(const Label& label, std::string* text) {
    *text += std::string(text->back() == '{' ? "" : ",") + label.name + "=\"";
    for (const char c : label.value) {
        if (c == '\\' || c == '"') {
            *text += '\\';
        }
        *text += c == '\n' ? std::string("\\n") : std::string(1, c);
    }
    *text += '"';
}

// Millionths as Prometheus reads numbers: 0.00025.
std::string print_millionths(std::uint64_t number) {
    std::string text = std::to_string(number % 1'000'000);
    text = std::to_string(number / 1'000'000) + "." + std::string(6 - text.size(), '0') + text;
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') {
        text.pop_back();
    }
    return text;
}

std::string print_number(std::uint64_t number) { return std::to_string(number); }

// One metric: its first lines with its first value.
class Metric {
  public:
    Metric(std::string* text, const char* name, const char* type, const char* help)
        : text_(text), name_(name), type_(type), help_(help) {}

    void add(Labels labels, std::uint64_t value) { add("", labels, nullptr, print_number(value)); }

    // `print` makes text of bounds and of the sum, which are in the same unit.
    template <class Bound, unsigned kBounds>
    void add_histogram(Labels labels, const Bound (&bounds)[kBounds], const HistogramTotals<kBounds>& totals,
                       std::string (*print)(std::uint64_t)) {
        std::uint64_t count = 0;
        for (unsigned i = 0; i <= kBounds; i++) {
            count += totals.counts[i];
            const std::string bound = i < kBounds ? print(static_cast<std::uint64_t>(bounds[i])) : "+Inf";
            add("_bucket", labels, &bound, print_number(count));
        }
        add("_sum", labels, nullptr, print(totals.sum));
        add("_count", labels, nullptr, print_number(count));
    }

  private:
    void add(const char* suffix, Labels labels, const std::string* bound, const std::string& value) {
        if (!begun_) {
            begun_ = true;
            *text_ += std::string("# HELP ") + name_ + " " + help_ + "\n# TYPE " + name_ + " " + type_ + "\n";
        }
        *text_ += std::string(name_) + suffix + "{";
        for (const Label& label : labels) {
            print_label(label, text_);
        }
        if (bound != nullptr) {
            print_label({"le", *bound}, text_);
        }
        *text_ += "} " + value + "\n";
    }

    std::string* text_;
    const char* name_;
    const char* type_;
    const char* help_;
    bool begun_ = false;
};

// A configuration's zones, or servers, each with what was counted, read once.
template <class Owner, class Totals>
struct Read {
    const Owner* owner;
    std::string_view name;
    Totals totals;
};

using ReadZone = Read<Zone, ZoneTotals>;
using ReadServer = Read<RedisServer, RedisTotals>;

template <class Owner, class Totals>
std::vector<Read<Owner, Totals>> read_all(const ngx_array_t& owners, Totals (*read)(const Owner&)) {
    auto** all = static_cast<Owner**>(owners.elts);
    std::vector<Read<Owner, Totals>> list;
    for (ngx_uint_t i = 0; i < owners.nelts; i++) {
        list.push_back({all[i], view(all[i]->name), read(*all[i])});
    }
    return list;
}

void print_requests(const std::vector<ReadZone>& zones, std::string* text) {
    Metric requests(text, "rate_limiter_requests_total", "counter",
                    "Requests that a zone decided, by whether they were admitted.");
    for (const ReadZone& zone : zones) {
        const char* algorithm = algorithm_name(zone.owner->policy.algorithm);
        const auto add = [&](const char* allowed, std::uint64_t count) {
            requests.add({{"zone", zone.name}, {"algorithm", algorithm}, {"allowed", allowed}}, count);
        };
        add("true", zone.totals.allowed);
        add("false", zone.totals.rejected);
    }
    Metric delayed(text, "rate_limiter_delayed_total", "counter", "Admitted requests that a zone delayed.");
    for (const ReadZone& zone : zones) {
        delayed.add({{"zone", zone.name}}, zone.totals.delayed);
    }
    Metric aborted(text, "rate_limiter_aborted_total", "counter",
                   "Requests that ended while they waited for Redis or for their turn; they are charged.");
    for (const ReadZone& zone : zones) {
        aborted.add({{"zone", zone.name}}, zone.totals.aborted);
    }
    Metric dry_run(text, "rate_limiter_dry_run_total", "counter",
                   "Requests that a zone would have rejected or delayed but for rate_limit_dry_run.");
    for (const ReadZone& zone : zones) {
        dry_run.add({{"zone", zone.name}, {"outcome", "rejected"}}, zone.totals.dry_run_rejected);
        dry_run.add({{"zone", zone.name}, {"outcome", "delayed"}}, zone.totals.dry_run_delayed);
    }
}

void print_bypasses(const std::vector<ReadZone>& zones, std::string* text) {
    Metric bypassed(text, "rate_limiter_bypassed_total", "counter",
                    "Requests that a zone did not apply to, by the reason.");
    for (const ReadZone& zone : zones) {
        for (const Bypass bypass : {Bypass::kEmptyKey, Bypass::kRateOff}) {
            bypassed.add({{"zone", zone.name}, {"reason", bypass_name(bypass)}},
                         zone.totals.bypassed[static_cast<unsigned>(bypass)]);
        }
    }
}

void print_shadows(const std::vector<ReadZone>& zones, std::string* text) {
    constexpr const char* kWords[] = {"rejected", "allowed"};
    Metric shadows(text, "rate_limiter_shadow_total", "counter",
                   "Requests by what the live limits did and what a candidate would have done.");
    for (const ReadZone& zone : zones) {
        for (unsigned live = 0; zone.owner->shadow && live < 2; live++) {
            for (unsigned candidate = 0; candidate < 2; candidate++) {
                shadows.add({{"zone", zone.name}, {"live", kWords[live]}, {"candidate", kWords[candidate]}},
                            zone.totals.shadows[live][candidate]);
            }
        }
    }
}

// Whether a zone's requests can be decided so.
bool may_be_decided_by(const Zone& zone, DecidedBy decided_by) {
    switch (decided_by) {
        case DecidedBy::kMemory:
            return !asks_redis(zone);
        case DecidedBy::kRedis:
            return asks_redis(zone);
        case DecidedBy::kCache:
            return zone.denials != nullptr;
        case DecidedBy::kFallback:
            return asks_redis(zone) && zone.on_error == OnError::kLocal;
        default:
            return false;
    }
}

void print_decisions(const std::vector<ReadZone>& zones, std::string* text) {
    Metric stores(text, "rate_limiter_store_total", "counter", "Requests that a zone decided, by who did.");
    for (const ReadZone& zone : zones) {
        for (unsigned i = 0; i < kDeciders; i++) {
            const auto decided_by = static_cast<DecidedBy>(i);
            if (may_be_decided_by(*zone.owner, decided_by) || zone.totals.decided_by[i] != 0) {
                stores.add({{"zone", zone.name}, {"store", decided_by_name(decided_by)}},
                           zone.totals.decided_by[i]);
            }
        }
    }
    Metric errors(text, "rate_limiter_errors_total", "counter",
                  "Requests that were not decided by whom a zone asks first, by the reason.");
    for (const ReadZone& zone : zones) {
        for (Reason reason = 0; reason < kReasons; reason++) {
            if (may_have_reason(*zone.owner, reason) || zone.totals.reasons[reason] != 0) {
                errors.add({{"zone", zone.name}, {"reason", reason_name(reason)}},
                           zone.totals.reasons[reason]);
            }
        }
    }
    Metric checks(text, "rate_limiter_check_seconds", "histogram",
                  "Time from the first question to the decision, waiting for Redis included.");
    for (const ReadZone& zone : zones) {
        checks.add_histogram({{"zone", zone.name}}, kTimeBoundsMicros, zone.totals.checks, print_millionths);
    }
}

void print_tables(const std::vector<ReadZone>& zones, std::string* text) {
    Metric keys(text, "rate_limiter_keys", "gauge", "Clients that a zone remembers in shared memory.");
    for (const ReadZone& zone : zones) {
        if (zone.owner->table != nullptr) {
            keys.add({{"zone", zone.name}}, zone.owner->table->clients());
        }
    }
    Metric evictions(text, "rate_limiter_evictions_total", "counter",
                     "Clients that were forgotten before they were back at their full quota.");
    for (const ReadZone& zone : zones) {
        if (zone.owner->table != nullptr) {
            evictions.add({{"zone", zone.name}}, zone.owner->table->evictions());
        }
    }
    Metric overshoot(
        text, "rate_limiter_sync_overshoot_total", "counter",
        "Requests that this instance admitted beyond the limit, as Redis found when it was told.");
    for (const ReadZone& zone : zones) {
        if (zone.owner->sync != 0 && zone.owner->table != nullptr) {
            overshoot.add({{"zone", zone.name}}, zone.owner->table->overshoot());
        }
    }
    Metric lost(text, "rate_limiter_sync_lost_total", "counter",
                "Requests that Redis was not told of, because their client was forgotten before.");
    for (const ReadZone& zone : zones) {
        if (zone.owner->sync != 0 && zone.owner->table != nullptr) {
            lost.add({{"zone", zone.name}}, zone.owner->table->lost());
        }
    }
}

void print_health(const std::vector<ReadServer>& servers, std::string* text) {
    Metric up(text, "rate_limiter_redis_up", "gauge",
              "Whether a Redis answers: 1 unless it was silent for three seconds, or the breaker of a worker "
              "is open.");
    for (const ReadServer& server : servers) {
        up.add({{"redis", server.name}}, is_up(*server.owner) ? 1 : 0);
    }
    Metric open(text, "rate_limiter_breaker_open", "gauge", "Workers whose breaker is open.");
    for (const ReadServer& server : servers) {
        open.add({{"redis", server.name}}, open_breakers(*server.owner));
    }
    Metric opened(text, "rate_limiter_breaker_opened_total", "counter", "How often a breaker has opened.");
    for (const ReadServer& server : servers) {
        opened.add({{"redis", server.name}}, server.totals.opened);
    }
    Metric instances(text, "rate_limiter_instances", "gauge",
                     "Instances of nginx that share a Redis, as last heard.");
    for (const ReadServer& server : servers) {
        if (server.owner->counts_instances) {
            instances.add({{"redis", server.name}}, server.owner->membership()->share().instances);
        }
    }
}

void print_calls(const std::vector<ReadServer>& servers, std::string* text) {
    Metric errors(text, "rate_limiter_redis_errors_total", "counter",
                  "Calls for requests that failed, or had to be repeated, by the reason.");
    for (const ReadServer& server : servers) {
        for (unsigned i = 1; i < redis::kErrors; i++) {
            errors.add({{"redis", server.name}, {"reason", redis::error_name(static_cast<redis::Error>(i))}},
                       server.totals.errors[i]);
        }
    }
    Metric round_trips(text, "rate_limiter_redis_round_trip_seconds", "histogram",
                       "Time from a call for requests to its reply.");
    for (const ReadServer& server : servers) {
        round_trips.add_histogram({{"redis", server.name}}, kTimeBoundsMicros, server.totals.round_trips,
                                  print_millionths);
    }
    Metric batches(text, "rate_limiter_batch_size", "histogram", "Requests that one call asked for.");
    for (const ReadServer& server : servers) {
        batches.add_histogram({{"redis", server.name}}, kBatchBoundsGroups, server.totals.batches,
                              print_number);
    }
}

std::string print_metrics(const ngx_http_rate_limit_main_conf_t& conf) {
    std::string text;
    const std::vector<ReadZone> zones = read_all<Zone, ZoneTotals>(conf.zones, zone_totals);
    print_requests(zones, &text);
    print_bypasses(zones, &text);
    print_shadows(zones, &text);
    print_decisions(zones, &text);
    print_tables(zones, &text);
    const std::vector<ReadServer> servers = read_all<RedisServer, RedisTotals>(conf.servers, redis_totals);
    print_health(servers, &text);
    print_calls(servers, &text);
    return text.empty() ? "\n" : text;  // nginx does not send an empty body
}

ngx_int_t send_metrics(ngx_http_request_t* r) {
    if ((r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD)) == 0) {
        return NGX_HTTP_NOT_ALLOWED;
    }
    const ngx_int_t discarded = ngx_http_discard_request_body(r);
    if (discarded != NGX_OK) {
        return discarded;
    }
    const auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_get_module_main_conf(r, ngx_http_rate_limit_module));
    const std::string text = print_metrics(*conf);
    ngx_buf_t* buffer = ngx_create_temp_buf(r->pool, text.size() + 1);
    if (buffer == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    buffer->last = ngx_cpymem(buffer->last, text.data(), text.size());
    buffer->last_buf = r == r->main ? 1 : 0;
    buffer->last_in_chain = 1;
    ngx_str_set(&r->headers_out.content_type, "text/plain; version=0.0.4; charset=utf-8");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = static_cast<off_t>(text.size());
    const ngx_int_t sent = ngx_http_send_header(r);
    if (sent == NGX_ERROR || sent > NGX_OK || r->header_only) {
        return sent;
    }
    ngx_chain_t chain = {buffer, nullptr};
    return ngx_http_output_filter(r, &chain);
}

}  // namespace
}  // namespace rate_limit

extern "C" char* ngx_http_rate_limit_metrics(ngx_conf_t* cf, ngx_command_t*, void*) {
    auto* core =
        static_cast<ngx_http_core_loc_conf_t*>(ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module));
    core->handler = rate_limit::send_metrics;
    auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_rate_limit_module));
    conf->observed = 1;
    return NGX_CONF_OK;
}
