// The directive rate_limit_metrics: metrics in the Prometheus text format.
#include <initializer_list>
#include <string>

#include "configuration/configuration.h"
#include "core/version_text.h"
#include "nginx/collections.h"
#include "request/counters.h"
#include "statistics/body_statistics.h"

namespace rate_limit {
namespace {

struct Label {
    const char* name;
    std::string_view value;
};

using Labels = std::initializer_list<Label>;

// Prints NAME="VALUE". Backslashes, quotes and newlines are escaped.
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

// Prints a number of millionths in decimal notation, such as 0.00025.
std::string print_millionths(std::uint64_t number) {
    std::string text = std::to_string(number % 1'000'000);
    text = std::to_string(number / 1'000'000) + "." + std::string(6 - text.size(), '0') + text;
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') {
        text.pop_back();
    }
    return text;
}

std::string print_integer(std::uint64_t number) { return std::to_string(number); }

// One metric. Its HELP and TYPE lines are printed before its first value, and not at all without a value.
class Metric {
  public:
    Metric(std::string* text, const char* name, const char* type, const char* help)
        : text_(text), name_(name), type_(type), help_(help) {}

    void add(Labels labels, std::uint64_t value) { add("", labels, nullptr, print_integer(value)); }

    // `print` prints the bounds and the sum, which have the same unit.
    template <class Bound, unsigned kBounds>
    void add_histogram(Labels labels, const Bound (&bounds)[kBounds], const HistogramTotals<kBounds>& totals,
                       std::string (*print)(std::uint64_t)) {
        std::uint64_t count = 0;
        for (unsigned i = 0; i <= kBounds; i++) {
            count += totals.counts[i];
            const std::string bound = i < kBounds ? print(static_cast<std::uint64_t>(bounds[i])) : "+Inf";
            add("_bucket", labels, &bound, print_integer(count));
        }
        add("_sum", labels, nullptr, print(totals.sum));
        add("_count", labels, nullptr, print_integer(count));
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

// A zone or a server, and its counters, which are read once for all metrics.
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
    std::vector<Read<Owner, Totals>> list;
    for (const Owner* owner : pointers<Owner>(owners)) {
        list.push_back({owner, view(owner->name), read(*owner)});
    }
    return list;
}

// Prints the metrics of all zones or of all servers. The label `kind` has the name of each.
template <class Owner>
class Printer {
  public:
    Printer(const char* kind, const std::vector<Owner>& owners, std::string* text)
        : kind_(kind), owners_(owners), text_(text) {}

    // A metric with one value for each owner for which `applies` is true.
    template <class Value, class Applies>
    void print(const char* name, const char* type, const char* help, Value value, Applies applies) const {
        Metric metric(text_, name, type, help);
        for (const Owner& owner : owners_) {
            if (applies(*owner.owner)) {
                metric.add({{kind_, owner.name}}, value(owner));
            }
        }
    }
    template <class Value>
    void print(const char* name, const char* type, const char* help, Value value) const {
        print(name, type, help, value, [](const auto&) { return true; });
    }

    // A metric with a value for each of several values of a label. `applies` tells whether an owner can have
    // a value; other values are printed only if they were counted.
    template <class Counts, class Applies>
    void print_by(const char* label, const char* (*name_of)(unsigned), unsigned first, unsigned end,
                  const char* name, const char* help, Counts counts, Applies applies) const {
        Metric metric(text_, name, "counter", help);
        for (const Owner& owner : owners_) {
            for (unsigned i = first; i < end; i++) {
                const std::uint64_t count = counts(owner)[i];
                if (count != 0 || applies(*owner.owner, i)) {
                    metric.add({{kind_, owner.name}, {label, name_of(i)}}, count);
                }
            }
        }
    }

    template <class Bound, unsigned kBounds, class Totals>
    void print_histogram(const char* name, const char* help, const Bound (&bounds)[kBounds], Totals totals,
                         std::string (*print)(std::uint64_t)) const {
        Metric metric(text_, name, "histogram", help);
        for (const Owner& owner : owners_) {
            metric.add_histogram({{kind_, owner.name}}, bounds, totals(owner), print);
        }
    }

  private:
    const char* kind_;
    const std::vector<Owner>& owners_;
    std::string* text_;
};

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
    const Printer<ReadZone> printer("zone", zones, text);
    printer.print("rate_limiter_delayed_total", "counter", "Admitted requests that a zone delayed.",
                  [](const ReadZone& zone) { return zone.totals.delayed; });
    printer.print("rate_limiter_aborted_total", "counter",
                  "Requests that ended while they waited for Redis or were delayed; they are charged.",
                  [](const ReadZone& zone) { return zone.totals.aborted; });
    Metric dry_run(text, "rate_limiter_dry_run_total", "counter",
                   "Requests that a zone would have rejected or delayed without rate_limit_dry_run.");
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

void print_settled(const std::vector<ReadZone>& zones, std::string* text) {
    Metric settled(text, "rate_limiter_settled_total", "counter",
                   "Requests whose charge was corrected by settle= or the API, by the result.");
    for (const ReadZone& zone : zones) {
        for (unsigned i = 0; i < kSettledResults; i++) {
            if (zone.owner->policy.overdraft != 0 || zone.totals.settled[i] != 0) {
                settled.add({{"zone", zone.name}, {"result", settled_name(i)}}, zone.totals.settled[i]);
            }
        }
    }
}

void print_shadows(const std::vector<ReadZone>& zones, std::string* text) {
    constexpr const char* kWords[] = {"rejected", "allowed"};
    Metric shadows(text, "rate_limiter_shadow_total", "counter",
                   "Requests by the decision of the live limits and the decision of a shadow.");
    for (const ReadZone& zone : zones) {
        for (unsigned live = 0; zone.owner->shadow && live < 2; live++) {
            for (unsigned shadow = 0; shadow < 2; shadow++) {
                shadows.add({{"zone", zone.name}, {"live", kWords[live]}, {"shadow", kWords[shadow]}},
                            zone.totals.shadows[live][shadow]);
            }
        }
    }
}

// Whether requests of a zone can be decided there.
bool may_be_decided_by(const Zone& zone, unsigned decided_by) {
    switch (static_cast<DecidedBy>(decided_by)) {
        case DecidedBy::kMemory:
            return !asks_redis(zone);
        case DecidedBy::kRedis:
            return asks_redis(zone);
        case DecidedBy::kCache:
            return zone.denials != nullptr;
        case DecidedBy::kFallback:
            return asks_redis(zone) && zone.on_error == OnError::kLocal;
        case DecidedBy::kLease:
            return zone.leases != nullptr;
        default:
            return false;
    }
}

void print_decisions(const std::vector<ReadZone>& zones, std::string* text) {
    const Printer<ReadZone> printer("zone", zones, text);
    printer.print_by(
        "store", [](unsigned i) { return decided_by_name(static_cast<DecidedBy>(i)); }, 0, kDeciders,
        "rate_limiter_store_total", "Requests that a zone decided, by the place of the decision.",
        [](const ReadZone& zone) { return zone.totals.decided_by; }, may_be_decided_by);
    printer.print_by(
        "reason", [](unsigned i) { return reason_name(static_cast<Reason>(i)); }, 0, kReasons,
        "rate_limiter_errors_total", "Requests that were not decided as configured, by the reason.",
        [](const ReadZone& zone) { return zone.totals.reasons; },
        [](const Zone& zone, unsigned reason) { return may_have_reason(zone, static_cast<Reason>(reason)); });
    printer.print_histogram(
        "rate_limiter_check_seconds", "Duration of a decision, including the wait for Redis.",
        kTimeBoundsMicros, [](const ReadZone& zone) -> const auto& { return zone.totals.checks; },
        print_millionths);
}

void print_tables(const std::vector<ReadZone>& zones, std::string* text) {
    const auto has_table = [](const Zone& zone) { return zone.table != nullptr; };
    const auto is_synced = [](const Zone& zone) { return zone.sync != 0 && zone.table != nullptr; };
    const Printer<ReadZone> printer("zone", zones, text);
    printer.print(
        "rate_limiter_keys", "gauge", "Clients that a zone stores in shared memory.",
        [](const ReadZone& zone) { return zone.owner->table->clients(); }, has_table);
    printer.print(
        "rate_limiter_evictions_total", "counter",
        "Clients that were evicted before their full quota was back.",
        [](const ReadZone& zone) { return zone.owner->table->evictions(); }, has_table);
    printer.print(
        "rate_limiter_sync_overshoot_total", "counter",
        "Requests that this instance admitted beyond the limit, as found when they were reported to Redis.",
        [](const ReadZone& zone) { return zone.owner->table->overshoot(); }, is_synced);
    printer.print(
        "rate_limiter_sync_lost_total", "counter",
        "Requests that were never reported to Redis, because their client was evicted before.",
        [](const ReadZone& zone) { return zone.owner->table->lost(); }, is_synced);
}

void print_leases(const std::vector<ReadZone>& zones, std::string* text) {
    const auto has_leases = [](const Zone& zone) { return zone.leases != nullptr; };
    const Printer<ReadZone> printer("zone", zones, text);
    printer.print(
        "rate_limiter_lease_asks_total", "counter", "Calls that asked Redis for a portion of a quota.",
        [](const ReadZone& zone) { return zone.owner->leases->totals().asks; }, has_leases);
    printer.print(
        "rate_limiter_lease_units_total", "counter", "Requests that Redis has granted in advance.",
        [](const ReadZone& zone) { return zone.owner->leases->totals().leased; }, has_leases);
    printer.print(
        "rate_limiter_lease_returned_total", "counter",
        "Requests that were granted in advance, not used, and given back to Redis.",
        [](const ReadZone& zone) { return zone.owner->leases->totals().returned; }, has_leases);
}

void print_bodies(const ngx_http_rate_limit_main_conf_t& conf, std::string* text) {
    if (conf.body_statistics == nullptr) {
        return;
    }
    Metric bodies(text, "rate_limiter_bodies_total", "counter",
                  "Bodies that rate_limit_request and rate_limit_response have read or could not read.");
    const BodyTotals totals = static_cast<const BodyStatistics*>(conf.body_statistics)->read();
    for (const BodyKind kind : {BodyKind::kRequest, BodyKind::kResponse}) {
        for (unsigned i = 0; i < kBodyResults; i++) {
            bodies.add(
                {{"body", body_kind_name(kind)}, {"result", body_result_name(static_cast<BodyResult>(i))}},
                totals.counts[static_cast<unsigned>(kind)][i]);
        }
    }
}

void print_health(const std::vector<ReadServer>& servers, std::string* text) {
    const Printer<ReadServer> printer("redis", servers, text);
    printer.print("rate_limiter_redis_up", "gauge",
                  "0 if a Redis has not answered for three seconds or a worker has an open breaker, else 1.",
                  [](const ReadServer& server) { return is_up(*server.owner) ? 1U : 0U; });
    printer.print("rate_limiter_redis_native", "gauge",
                  "1 if the native module of a Redis has decided the last call for requests, else 0.",
                  [](const ReadServer& server) { return server.totals.is_native ? 1U : 0U; });
    printer.print("rate_limiter_redis_native_calls_total", "counter",
                  "Calls for requests that the native module of a Redis has decided.",
                  [](const ReadServer& server) { return server.totals.native; });
    printer.print("rate_limiter_breaker_open", "gauge", "Workers with an open breaker.",
                  [](const ReadServer& server) { return open_breakers(*server.owner); });
    printer.print("rate_limiter_breaker_opened_total", "counter", "How often a breaker has opened.",
                  [](const ReadServer& server) { return server.totals.opened; });
    printer.print(
        "rate_limiter_instances", "gauge", "Instances of nginx that share a Redis, as last reported.",
        [](const ReadServer& server) { return server.owner->membership()->share().instances; },
        [](const RedisServer& server) { return server.counts_instances; });
}

void print_calls(const std::vector<ReadServer>& servers, std::string* text) {
    const Printer<ReadServer> printer("redis", servers, text);
    printer.print_by(
        "reason", [](unsigned i) { return redis::error_name(static_cast<redis::Error>(i)); }, 1,
        redis::kErrors, "rate_limiter_redis_errors_total",
        "Calls for requests that failed or had to be retried, by the reason.",
        [](const ReadServer& server) { return server.totals.errors; },
        [](const RedisServer&, unsigned) { return true; });
    printer.print_histogram(
        "rate_limiter_redis_round_trip_seconds", "Time from a call for requests to its reply.",
        kTimeBoundsMicros, [](const ReadServer& server) -> const auto& { return server.totals.round_trips; },
        print_millionths);
    printer.print_histogram(
        "rate_limiter_batch_size", "Requests in one call.", kBatchBoundsGroups,
        [](const ReadServer& server) -> const auto& { return server.totals.batches; }, print_integer);
}

void print_build(std::string* text) {
    Metric build(text, "rate_limiter_build_info", "gauge",
                 "Always 1. The version of the module, and of the nginx that it was built for.");
    build.add({{"version", kVersion}, {"nginx", NGINX_VERSION}}, 1);
}

std::string print_metrics(const ngx_http_rate_limit_main_conf_t& conf) {
    std::string text;
    print_build(&text);
    const std::vector<ReadZone> zones = read_all<Zone, ZoneTotals>(conf.zones, zone_totals);
    print_requests(zones, &text);
    print_bypasses(zones, &text);
    print_settled(zones, &text);
    print_shadows(zones, &text);
    print_decisions(zones, &text);
    print_tables(zones, &text);
    print_leases(zones, &text);
    print_bodies(conf, &text);
    const std::vector<ReadServer> servers = read_all<RedisServer, RedisTotals>(conf.servers, redis_totals);
    print_health(servers, &text);
    print_calls(servers, &text);
    return text;
}

ngx_int_t send_metrics(ngx_http_request_t* r) {
    if ((r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD)) == 0) {
        return NGX_HTTP_NOT_ALLOWED;
    }
    const std::string text = print_metrics(*main_conf_of(r));
    ngx_http_complex_value_t body = {};
    body.value.len = text.size();
    body.value.data = static_cast<u_char*>(ngx_pnalloc(r->pool, text.size()));
    if (body.value.data == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    ngx_memcpy(body.value.data, text.data(), text.size());
    ngx_str_t type = ngx_string("text/plain; version=0.0.4; charset=utf-8");
    return ngx_http_send_response(r, NGX_HTTP_OK, &type, &body);
}

}  // namespace
}  // namespace rate_limit

extern "C" char* ngx_http_rate_limit_metrics(ngx_conf_t* cf, ngx_command_t*, void*) {
    rate_limit::core_loc_conf_of(cf)->handler = rate_limit::send_metrics;
    rate_limit::main_conf_of(cf)->observed = 1;
    return NGX_CONF_OK;
}
