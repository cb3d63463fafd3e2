// The directive rate_limit_api, and the dispatch of a request to its call.
#include "api/api.h"

#include "api/answer.h"
#include "api/arguments.h"
#include "api/check.h"
#include "api/correct.h"
#include "api/write.h"
#include "api/zones.h"
#include "configuration/options.h"
#include "nginx/shared_state.h"
#include "request/headers.h"
#include "request/request.h"

namespace rate_limit {
namespace {

constexpr const char* kCalls =
    "the calls are check, remaining, charge, refund, reset, health, zones, zones/NAME and history, after "
    "the path of the location";

// A GET that changes state must have this header. A browser sends it to another origin only if that origin
// allows it.
constexpr std::string_view kApiHeader = "X-Rate-Limit-Api";

enum class Call : std::uint8_t {
    kNone,
    kCheck,
    kRemaining,
    kCharge,
    kRefund,
    kReset,
    kHealth,
    kZones,
    kZone,
    kHistory
};

struct Target {
    Call call = Call::kNone;
    std::string_view zone = {};  // of kZone
};

Target target_of(std::string_view path) {
    constexpr struct {
        std::string_view name;
        Call call;
    } kNames[] = {{"check", Call::kCheck},   {"remaining", Call::kRemaining}, {"charge", Call::kCharge},
                  {"refund", Call::kRefund}, {"reset", Call::kReset},         {"health", Call::kHealth},
                  {"zones", Call::kZones},   {"history", Call::kHistory}};
    constexpr std::string_view kZonePath = "zones/";
    for (const auto& known : kNames) {
        if (path == known.name) {
            return {known.call};
        }
    }
    return path.size() > kZonePath.size() && path.substr(0, kZonePath.size()) == kZonePath
               ? Target{Call::kZone, path.substr(kZonePath.size())}
               : Target{};
}

ngx_uint_t methods_of(Call call) {
    switch (call) {
        case Call::kCheck:
            return NGX_HTTP_GET | NGX_HTTP_HEAD | NGX_HTTP_POST;
        case Call::kCharge:
        case Call::kRefund:
            return NGX_HTTP_POST;
        case Call::kReset:
            return NGX_HTTP_DELETE;
        case Call::kZone:
            return NGX_HTTP_GET | NGX_HTTP_HEAD | NGX_HTTP_PATCH | NGX_HTTP_DELETE;
        default:
            return NGX_HTTP_GET | NGX_HTTP_HEAD;
    }
}

std::string_view allow_of(Call call) {
    switch (call) {
        case Call::kCheck:
            return "GET, HEAD, POST";
        case Call::kCharge:
        case Call::kRefund:
            return "POST";
        case Call::kReset:
            return "DELETE";
        case Call::kZone:
            return "GET, HEAD, PATCH, DELETE";
        default:
            return "GET, HEAD";
    }
}

ApiTakes takes_of(Call call) {
    switch (call) {
        case Call::kCheck:
            return ApiTakes::kPermits;
        case Call::kRemaining:
            return ApiTakes::kRate;
        case Call::kCharge:
        case Call::kRefund:
            return ApiTakes::kAmount;
        case Call::kReset:
            return ApiTakes::kClient;
        default:
            return ApiTakes::kNothing;
    }
}

// Calls `visit` with the value of each header of this name.
template <class Visit>
void for_each_header(ngx_http_request_t* r, std::string_view name, Visit visit) {
    for (const ngx_table_elt_t& header : request_headers(*r)) {
        if (same_letters(view(header.key), name)) {
            visit(view(header.value));
        }
    }
}

// Removes the port from a host if it is the default port of the scheme.
std::string_view without_port(std::string_view host, std::string_view port) {
    return host.size() > port.size() && host.substr(host.size() - port.size()) == port
               ? host.substr(0, host.size() - port.size())
               : host;
}

// Whether the header Origin names the host of the request.
bool is_own_origin(std::string_view origin, std::string_view host) {
    for (const auto& [scheme, port] : {std::pair<std::string_view, std::string_view>("http://", ":80"),
                                       std::pair<std::string_view, std::string_view>("https://", ":443")}) {
        if (same_letters(origin.substr(0, scheme.size()), scheme)) {
            return !host.empty() &&
                   same_letters(without_port(origin.substr(scheme.size()), port), without_port(host, port));
        }
    }
    return false;
}

// False if Sec-Fetch-Site or Origin names another site. HTTP/3 has no Host to compare with Origin, so
// Sec-Fetch-Site decides alone.
bool is_same_origin(ngx_http_request_t* r) {
    bool same = true;
    bool stated = false;  // by Sec-Fetch-Site
    const std::string_view host =
        r->headers_in.host != nullptr ? view(r->headers_in.host->value) : std::string_view();
    for_each_header(r, "Sec-Fetch-Site", [&](std::string_view site) {
        stated = same_letters(site, "same-origin");
        same = same && (stated || same_letters(site, "none"));
    });
    for_each_header(r, "Origin", [&](std::string_view origin) {
        same = same && (host.empty() ? stated : is_own_origin(origin, host));
    });
    return same;
}

bool is_read(const ngx_http_request_t* r) { return (r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD)) != 0; }

bool changes_state(const ngx_http_request_t* r, Call call) { return call == Call::kCheck || !is_read(r); }

// Whether no page of another site can have made a browser send this request. All calls that change state
// require it. For methods other than GET and HEAD, a browser sends the origin of the page. For GET and HEAD,
// it may send no origin (an image, a link or a form without TLS). But it adds kApiHeader to a request to
// another site only after a CORS preflight, which the API never allows. A subrequest comes from the
// configuration.
bool is_own(ngx_http_request_t* r) {
    bool marked = !is_read(r) || r != r->main;
    for_each_header(r, kApiHeader, [&](std::string_view) { marked = true; });
    return marked && is_same_origin(r);
}

ngx_int_t call_without_zone(ngx_http_request_t* r, Call call) {
    if (call == Call::kHealth) {
        bool healthy = true;
        const identity::Json json = describe_health(r, &healthy);
        return send_json(r, healthy ? NGX_HTTP_OK : NGX_HTTP_SERVICE_UNAVAILABLE, json);
    }
    return send_json(r, NGX_HTTP_OK, call == Call::kZones ? describe_zones(r) : describe_history(r));
}

ngx_int_t call_zone(ngx_http_request_t* r, Zone* zone) {
    switch (r->method) {
        case NGX_HTTP_PATCH:
            return api_patch(r, zone);
        case NGX_HTTP_DELETE:
            return api_restore(r, zone);
        default:
            return send_json(r, NGX_HTTP_OK, describe_zone(r, zone));
    }
}

ngx_int_t call_client(ngx_http_request_t* r, Call call, Zone* zone, const ApiArguments& arguments) {
    switch (call) {
        case Call::kCheck:
            return api_check(r, zone, arguments);
        case Call::kRemaining:
            return api_remaining(r, zone, arguments);
        case Call::kCharge:
            return api_charge(r, zone, arguments);
        case Call::kRefund:
            return api_refund(r, zone, arguments);
        default:
            return api_reset(r, zone, arguments);
    }
}

// The call in a path that is not below the path of its location: the location is a regular expression, or is
// for a single call. After a rewrite, the path may begin without a slash.
std::string_view last_part(std::string_view path) {
    const std::size_t zones = path.rfind("/zones/");
    if (zones != std::string_view::npos) {
        return path.substr(zones + 1);
    }
    const std::size_t last = path.substr(0, 6) == "zones/" ? std::string_view::npos : path.rfind('/');
    return last != std::string_view::npos ? path.substr(last + 1) : path;
}

// Whether the call is permitted. If not, a response was sent, and `*answer` is the result of the handler.
bool is_permitted(ngx_http_request_t* r, Call call, ngx_int_t* answer) {
    if ((r->method & methods_of(call)) == 0) {
        *answer = add_answer_header(r, "Allow", allow_of(call))
                      ? send_api_problem(r, NGX_HTTP_NOT_ALLOWED,
                                         "the call takes the methods " + std::string(allow_of(call)))
                      : NGX_HTTP_INTERNAL_SERVER_ERROR;
        return false;
    }
    if (call != Call::kCheck && changes_state(r, call) && !api_settings(r).write) {
        *answer = send_api_problem(r, NGX_HTTP_FORBIDDEN,
                                   "this location does not write; it would with write=on of its directive");
        return false;
    }
    if (changes_state(r, call) && !is_own(r)) {
        *answer = send_api_problem(
            r, NGX_HTTP_FORBIDDEN,
            is_same_origin(r)
                ? "another site's page may have sent this; it must be a POST, or a GET with the header " +
                      std::string(kApiHeader) + ", whatever its value"
                : "another site's page has sent this; it must come from the same origin or from a "
                  "program");
        return false;
    }
    return true;
}

// A rate_limit_api or rate_limit_dashboard while it is being read.
struct ApiReader : DirectiveReader {
    ApiSettings* settings;
};

Parsed read_write(ApiReader* reader, const OptionValue& value) {
    return value.read_switch(&reader->settings->write);
}

Parsed read_keys(ApiReader* reader, const OptionValue& value) {
    return value.read_switch(&reader->settings->keys);
}

constexpr Option<ApiReader> kApiOptions[] = {
    {"write", "on|off", "whether clients can be charged, refunded and reset, and rates can be changed",
     "on or off", read_write},
    {"keys", "on|off", "whether the keys of clients are shown", "on or off", read_keys},
};

}  // namespace

const ApiSettings& api_settings(ngx_http_request_t* r) {
    return *static_cast<const ApiSettings*>(location_conf(r)->api);
}

std::string_view api_path(ngx_http_request_t* r) {
    const auto* core =
        static_cast<ngx_http_core_loc_conf_t*>(ngx_http_get_module_loc_conf(r, ngx_http_core_module));
    std::string_view path = view(r->uri);
    const std::string_view location = view(core->name);
    const bool folder = !location.empty() && location.back() == '/';
    if (path == location) {
        return folder ? std::string_view() : last_part(path);
    }
    if (path.substr(0, location.size()) != location) {
        return last_part(path);
    }
    path.remove_prefix(location.size());
    return path.substr(!folder && path.front() == '/' ? 1 : 0);
}

ngx_int_t handle_api(ngx_http_request_t* r) {
    const Target target = target_of(api_path(r));
    if (target.call == Call::kNone) {
        return send_api_problem(r, NGX_HTTP_NOT_FOUND, std::string("there is no such call; ") + kCalls);
    }
    ngx_int_t answer = NGX_OK;
    if (!is_permitted(r, target.call, &answer)) {
        return answer;
    }
    const ApiTakes takes = takes_of(target.call);
    const bool of_client = takes != ApiTakes::kNothing;
    ApiArguments arguments;
    std::string wrong;
    if (!read_arguments(view(r->args), takes, &arguments, &wrong)) {
        return send_api_problem(r, NGX_HTTP_BAD_REQUEST, wrong);
    }
    if (!of_client && target.call != Call::kZone) {
        return call_without_zone(r, target.call);
    }
    const std::string_view name = of_client ? std::string_view(arguments.zone) : target.zone;
    Zone* zone = find_zone(main_conf_of(r), ngx_str(name));
    if (zone == nullptr) {
        return send_api_problem(
            r, NGX_HTTP_NOT_FOUND,
            "there is no zone \"" + escaped_key(name) + "\"; the call zones tells those that there are");
    }
    zone_follow(zone);
    if (!of_client) {
        return call_zone(r, zone);
    }
    name_client(*zone, &arguments);
    return name_rate(*zone, &arguments, &wrong) ? call_client(r, target.call, zone, arguments)
                                                : send_api_problem(r, NGX_HTTP_BAD_REQUEST, wrong);
}

char* read_api_settings(ngx_conf_t* cf, ngx_command_t* cmd, ngx_http_rate_limit_loc_conf_t* conf,
                        ngx_http_handler_pt handler) {
    if (conf->api != nullptr) {
        return refuse(cf, cmd, "is duplicate in this location");
    }
    auto* settings = pool_new<ApiSettings>(cf->pool);
    std::uint64_t id = 0;
    if (settings == nullptr || !read_instance_id(&id)) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    ApiReader reader = {{cf, cmd, 1}, settings};
    if (char* wrong = read_options(&reader, kApiOptions)) {
        return wrong;
    }
    settings->handler = handler;
    settings->context = static_cast<ngx_http_conf_ctx_t*>(cf->ctx)->loc_conf;
    settings->directive = cmd->name;
    set_position(cf, settings);
    conf->api = settings;
    main_conf_of(cf)->observed = 1;
    main_conf_of(cf)->shows_history = 1;
    core_loc_conf_of(cf)->handler = handler;
    return NGX_CONF_OK;
}

}  // namespace rate_limit

extern "C" char* ngx_http_rate_limit_api(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_api_settings(cf, cmd, static_cast<ngx_http_rate_limit_loc_conf_t*>(conf),
                                         rate_limit::handle_api);
}
