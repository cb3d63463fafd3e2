// The location that tells numbers, as Prometheus reads them.
#include <string>

#include "nginx/module.h"
#include "nginx/zone.h"

namespace rate_limit {
namespace {

// A label's value: backslashes, quotes and newlines are escaped.
std::string label(std::string_view text) {
    std::string escaped;
    for (const char c : text) {
        if (c == '\\' || c == '"') {
            escaped += '\\';
        }
        escaped += c;
    }
    return escaped;
}

// One metric: its first lines with its first value.
class Metric {
  public:
    Metric(std::string* text, const char* name, const char* type, const char* help)
        : text_(text), name_(name), type_(type), help_(help) {}

    void add(const char* label_name, std::string_view label_value, std::uint64_t value) {
        if (!begun_) {
            begun_ = true;
            *text_ += std::string("# HELP ") + name_ + " " + help_ + "\n# TYPE " + name_ + " " + type_ + "\n";
        }
        *text_ += std::string(name_) + "{" + label_name + "=\"" + label(label_value) + "\"} " +
                  std::to_string(value) + "\n";
    }

  private:
    std::string* text_;
    const char* name_;
    const char* type_;
    const char* help_;
    bool begun_ = false;
};

std::string print_metrics(const ngx_http_rate_limit_main_conf_t& conf) {
    std::string text;
    auto** zones = static_cast<Zone**>(conf.zones.elts);
    Metric keys(&text, "rate_limiter_keys", "gauge", "Clients that a zone remembers in shared memory.");
    for (ngx_uint_t i = 0; i < conf.zones.nelts; i++) {
        if (zones[i]->table != nullptr) {
            keys.add("zone", view(zones[i]->name), zones[i]->table->clients());
        }
    }
    Metric evictions(&text, "rate_limiter_evictions_total", "counter",
                     "Clients that were forgotten before they were back at their full quota.");
    for (ngx_uint_t i = 0; i < conf.zones.nelts; i++) {
        if (zones[i]->table != nullptr) {
            evictions.add("zone", view(zones[i]->name), zones[i]->table->evictions());
        }
    }
    Metric overshoot(
        &text, "rate_limiter_sync_overshoot_total", "counter",
        "Requests that this instance admitted beyond the limit, as Redis found when it was told.");
    for (ngx_uint_t i = 0; i < conf.zones.nelts; i++) {
        if (zones[i]->sync != 0 && zones[i]->table != nullptr) {
            overshoot.add("zone", view(zones[i]->name), zones[i]->table->overshoot());
        }
    }
    auto** servers = static_cast<RedisServer**>(conf.servers.elts);
    Metric instances(&text, "rate_limiter_instances", "gauge",
                     "Instances of nginx that share a Redis, as last heard.");
    for (ngx_uint_t i = 0; i < conf.servers.nelts; i++) {
        if (servers[i]->membership != nullptr) {
            instances.add("redis", view(servers[i]->name), servers[i]->membership->share().instances);
        }
    }
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
    return NGX_CONF_OK;
}
