// The API calls that change a rate or reset a client, in this instance or on the whole fleet.
#include "api/write.h"

#include <jansson.h>

#include <memory>

#include "api/answer.h"
#include "api/api.h"
#include "api/operation.h"
#include "api/zones.h"
#include "configuration/configuration.h"
#include "fleet/fleet_operations.h"
#include "nginx/background.h"
#include "request/log.h"

namespace rate_limit {
namespace {

constexpr std::size_t kMostBody = 4096;  // bytes
constexpr char kUnchanged[] = "nothing was changed in this instance";

// `effect` is what the failed operation means for this instance.
ngx_int_t answer_error(const ApiOperation& change, const char* effect, redis::Error error) {
    return send_api_problem(change.request, NGX_HTTP_SERVICE_UNAVAILABLE,
                            "Redis \"" + std::string(view(change.zone->redis->name)) +
                                "\" cannot be asked, and " + effect + ": " + redis::error_name(error));
}

// Uses the changed rate of a zone in this worker, and logs the change.
void follow_change(Zone* zone, const RateTexts& texts, ngx_log_t* log) {
    zone_follow(zone);
    if (texts.now != texts.before) {
        ngx_log_error(NGX_LOG_NOTICE, log, 0, "rate of zone \"%V\" is now %s, it was %s", &zone->name,
                      texts.now.c_str(), texts.before.c_str());
    }
}

// PATCH and DELETE of a zone.
struct ZoneChange final : ApiOperation {
    ZoneChange(Zone* zone, const RateList* rates)
        : ApiOperation(zone), change(operation_target(*zone), &zone->redis->shared->changes, rates) {}

    FleetOperation* operation() override { return &change; }

    void on_success() override {
        follow_change(zone, change.texts(), request != nullptr ? request->connection->log : ngx_cycle->log);
    }

    ngx_int_t answer() override {
        return change.error() == redis::Error::kNone
                   ? send_json(request, NGX_HTTP_OK, describe_zone(request, zone))
                   : answer_error(*this, kUnchanged, change.error());
    }

    RateChange change;
};

ngx_int_t answer_reset(ngx_http_request_t* r, const Zone& zone, const ApiArguments& asked, bool known) {
    return known ? send_no_content(r)
                 : send_api_problem(r, NGX_HTTP_NOT_FOUND,
                                    "nothing is stored of client \"" + client_text(zone, asked.shown) +
                                        "\" in zone \"" + escaped_key(view(zone.name)) +
                                        "\": it was not counted, or it has its whole quota again");
}

// A reset of a client.
struct Reset final : ApiOperation {
    Reset(Zone* zone, const ApiArguments& asked)
        : ApiOperation(zone),
          asked(asked),
          reset(operation_target(*zone), zone->redis->shared->membership.id(), asked.key) {}

    FleetOperation* operation() override { return &reset; }

    ngx_int_t answer() override {
        if (reset.error() == redis::Error::kNone) {
            return answer_reset(request, *zone, asked, reset.known());
        }
        return answer_error(*this,
                            reset.forgotten()
                                ? "the client was reset in this instance, but perhaps not in Redis"
                                : kUnchanged,
                            reset.error());
    }

    ApiArguments asked;
    ClientReset reset;
};

// Sets the live rate of a zone; null `rates` restore the configured rate.
ngx_int_t change_zone(ngx_http_request_t* r, Zone* zone, const RateList* rates) {
    if (zone->redis == nullptr) {
        follow_change(zone, change_live_rate(fleet_zone(*zone), rates), r->connection->log);
        return send_json(r, NGX_HTTP_OK, describe_zone(r, zone));
    }
    return start_operation(r, std::make_unique<ZoneChange>(zone, rates));
}

// Reads the rate in a body; false if the body is wrong, with the reason in `*wrong`.
bool read_rate(const Zone& zone, std::string_view body, RateList* rates, std::string* wrong) {
    constexpr const char* kForm = "the body must be an object such as {\"rate\":\"200r/m\"}";
    json_error_t error;
    const identity::Json json(json_loadb(body.data(), body.size(), JSON_REJECT_DUPLICATES, &error));
    if (!json_is_object(json.get())) {
        *wrong = std::string("the body is not a JSON object; ") + kForm;
        return false;
    }
    const char* name = nullptr;
    json_t* value = nullptr;
    json_object_foreach(json.get(), name, value) {
        if (std::string_view(name) != "rate") {
            *wrong = "member \"" + escaped_key(std::string_view(name).substr(0, kLongestLogged)) +
                     "\" is not known; " + kForm;
            return false;
        }
    }
    const json_t* rate = json_object_get(json.get(), "rate");
    if (!json_is_string(rate)) {
        *wrong = std::string("member rate is missing or not a string; ") + kForm;
        return false;
    }
    return read_zone_rates(zone, {json_string_value(rate), json_string_length(rate)}, rates, wrong);
}

// Whether the request declares its body as JSON.
bool is_json(ngx_http_request_t* r) {
    if (r->headers_in.content_type == nullptr) {
        return false;
    }
    std::string_view type = view(r->headers_in.content_type->value);
    type = type.substr(0, type.find(';'));
    while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) {
        type.remove_suffix(1);
    }
    return same_letters(type, "application/json") || same_letters(type, "application/merge-patch+json");
}

// Reads the body; may leave out bytes after the first kMostBody + 1. False after an error.
bool collect_body(ngx_http_request_t* r, std::string* body) {
    for (ngx_chain_t* link = r->request_body != nullptr ? r->request_body->bufs : nullptr;
         link != nullptr && body->size() <= kMostBody; link = link->next) {
        ngx_buf_t* buffer = link->buf;
        if (!buffer->in_file) {
            body->append(reinterpret_cast<char*>(buffer->pos),
                         static_cast<std::size_t>(buffer->last - buffer->pos));
            continue;
        }
        u_char part[kMostBody + 1];
        const off_t size = ngx_min(buffer->file_last - buffer->file_pos, static_cast<off_t>(sizeof(part)));
        const ssize_t got =
            ngx_read_file(buffer->file, part, static_cast<std::size_t>(size), buffer->file_pos);
        if (got == NGX_ERROR) {
            return false;
        }
        body->append(reinterpret_cast<char*>(part), static_cast<std::size_t>(got));
    }
    return true;
}

ngx_int_t refuse_size(ngx_http_request_t* r) {
    return send_api_problem(
        r, NGX_HTTP_REQUEST_ENTITY_TOO_LARGE,
        "the body is too large; it must be at most " + std::to_string(kMostBody) + " bytes");
}

// The body has arrived. The zone in the path exists: it was found before the body was read.
void on_body(ngx_http_request_t* r) {
    constexpr std::string_view kZonePath = "zones/";
    std::string body;
    std::string wrong;
    RateList rates = {};
    const auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_get_module_main_conf(r, ngx_http_rate_limit_module));
    Zone* zone = find_zone(conf, ngx_str(api_path(r).substr(kZonePath.size())));
    ngx_int_t answered = NGX_HTTP_INTERNAL_SERVER_ERROR;
    if (zone != nullptr && collect_body(r, &body)) {
        if (body.size() > kMostBody) {
            answered = refuse_size(r);
        } else if (!read_rate(*zone, body, &rates, &wrong)) {
            answered = send_api_problem(r, NGX_HTTP_BAD_REQUEST, wrong);
        } else {
            answered = change_zone(r, zone, &rates);
        }
    }
    ngx_http_finalize_request(r, answered);
}

}  // namespace

ngx_int_t api_patch(ngx_http_request_t* r, Zone*) {
    if (!is_json(r)) {
        return add_answer_header(r, "Accept-Patch", "application/json, application/merge-patch+json")
                   ? send_api_problem(r, NGX_HTTP_UNSUPPORTED_MEDIA_TYPE,
                                      "the body is not said to be JSON; its type must be "
                                      "application/json or application/merge-patch+json")
                   : NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    if (r->headers_in.content_length_n > static_cast<off_t>(kMostBody)) {
        return refuse_size(r);
    }
    const ngx_int_t read = ngx_http_read_client_request_body(r, on_body);
    return read >= NGX_HTTP_SPECIAL_RESPONSE ? read : NGX_DONE;
}

ngx_int_t api_restore(ngx_http_request_t* r, Zone* zone) { return change_zone(r, zone, nullptr); }

ngx_int_t api_reset(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments) {
    if (zone->redis == nullptr) {
        const bool known = forget_client(fleet_zone(*zone), arguments.key, this_process());
        return answer_reset(r, *zone, arguments, known);
    }
    return start_operation(r, std::make_unique<Reset>(zone, arguments));
}

}  // namespace rate_limit
