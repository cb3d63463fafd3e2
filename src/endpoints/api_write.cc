// The calls that send Redis a command of their own: to change a rate, to forget a client, or to see whether
// a client is known.
#include <jansson.h>

#include <memory>
#include <new>
#include <vector>

#include "directives/configuration.h"
#include "endpoints/api.h"
#include "nginx/background.h"
#include "nginx/event_loop.h"
#include "nginx/log.h"
#include "nginx/suspend.h"

namespace rate_limit {
namespace {

constexpr std::size_t kMostBody = 4096;  // bytes

// A change, or a look, on its way to Redis. It outlives its request, whose client may leave.
struct Change {
    ngx_http_request_t* request = nullptr;  // null once it has gone
    ngx_http_cleanup_t* cleanup = nullptr;  // of that
    Zone* zone = nullptr;
    std::string client = {};  // who is forgotten; empty if the rate is changed, or nothing is
    bool looks = false;       // nothing is changed: the call is remaining
    ApiArguments asked = {};  // of a call about a client
    bool known = false;       // Redis or this instance has something of the client
    bool restore = false;     // the rate is to be the configuration's
    RateList rates = {};      // else these
    redis::Router* router = nullptr;
    std::vector<FleetCommand> commands = {};
    std::size_t next = 0;
    redis::Error error = redis::Error::kNone;
    redis::Alarm* task = nullptr;
};

// What holds in this instance from now on.
void apply_rate(Zone* zone, bool restore, const RateList& rates, ngx_log_t* log) {
    char text[kLongestRates];
    zone_follow(zone);
    const std::string before(zone_rate_text(*zone, text));
    if (zone->redis != nullptr) {
        zone->redis->shared->changes.note_change();
    }
    if (restore) {
        zone->shared->live.clear();
    } else {
        zone->shared->live.set(rates);
    }
    zone_follow(zone);
    const std::string now(zone_rate_text(*zone, text));
    if (now != before) {
        ngx_log_error(NGX_LOG_NOTICE, log, 0, "rate of zone \"%V\" is now %s, it was %s", &zone->name,
                      now.c_str(), before.c_str());
    }
}

ngx_log_t* log_of(const Change& change) {
    return change.request != nullptr ? change.request->connection->log : ngx_cycle->log;
}

ngx_int_t answer_reset(ngx_http_request_t* r, const Zone& zone, const ApiArguments& asked, bool known) {
    return known ? send_no_content(r)
                 : send_api_problem(r, NGX_HTTP_NOT_FOUND,
                                    "nothing is stored of client \"" + client_text(zone, asked.shown) +
                                        "\" in zone \"" + escaped_key(view(zone.name)) +
                                        "\": it was not counted, or it has its whole quota again");
}

ngx_int_t answer(const Change& change) {
    if (change.looks) {
        const bool failed = change.error != redis::Error::kNone;
        const Known known = change.known ? Known::kYes : failed ? Known::kUnsure : Known::kNo;
        return api_look(change.request, change.zone, change.asked, known);
    }
    if (change.error != redis::Error::kNone) {
        return send_api_problem(change.request, NGX_HTTP_SERVICE_UNAVAILABLE,
                                "Redis \"" + std::string(view(change.zone->redis->name)) +
                                    "\" cannot be asked, and nothing was changed in this instance: " +
                                    redis::error_name(change.error));
    }
    return change.client.empty()
               ? send_json(change.request, NGX_HTTP_OK, describe_zone(change.request, change.zone))
               : answer_reset(change.request, *change.zone, change.asked, change.known);
}

// All is done that can be: the request is answered, if it is still there.
void finish(void* self) {
    auto* change = static_cast<Change*>(self);
    ngx_http_request_t* r = change->request;
    if (r != nullptr) {
        change->cleanup->handler = nullptr;
        resume(r, [=] { ngx_http_finalize_request(r, answer(*change)); });
    }
    delete change->task;
    delete change;
}

void send_next(Change* change);

void on_answer(void* self, redis::Error error, std::string_view reply) {
    auto* change = static_cast<Change*>(self);
    change->known = change->known || (change->next == 0 && error == redis::Error::kNone && reply != "0");
    change->next++;
    if (error != redis::Error::kNone) {
        change->error = error;
        if (error == redis::Error::kDenied && change->looks) {
            change->zone->redis->look_denied = this_process().clock();
        }
        change->task->arm(0);
        return;
    }
    // The key is gone in Redis and all are told; what this instance has counted may have come there
    // meanwhile.
    constexpr std::size_t kBeforeForgetting = 2;
    if (!change->client.empty() && change->next == kBeforeForgetting) {
        const Zone& zone = *change->zone;
        if (forget_client(zone.table, zone.denials, change->client, this_process())) {
            change->known = true;
            change->commands.push_back(change->commands.front());
        }
    }
    if (change->next < change->commands.size()) {
        send_next(change);
        return;
    }
    if (change->client.empty() && !change->looks) {
        apply_rate(change->zone, change->restore, change->rates, log_of(*change));
    }
    change->task->arm(0);
}

void send_next(Change* change) {
    const FleetCommand& command = change->commands[change->next];
    redis::Client* client = change->router->client_of(command.slot);
    redis::Call* call = client != nullptr && client->available() ? client->make_call() : nullptr;
    if (call == nullptr) {
        change->error = redis::Error::kUnavailable;
        change->task->arm(0);
        return;
    }
    call->command.append(command.command);
    call->slot = command.slot;
    client->send(call, on_answer, change);
}

// The request has gone; the change goes on.
void leave(void* self) {
    auto* change = static_cast<Change*>(self);
    change->request = nullptr;
    change->cleanup = nullptr;
}

// Sends a change to Redis, and lets the request sleep until that has answered.
ngx_int_t start(ngx_http_request_t* r, Change* made) {
    std::unique_ptr<Change> change(made);
    change->router = background_router(change->zone->redis);
    change->task = change->router != nullptr ? nginx_loop()->make_task(finish, change.get()) : nullptr;
    change->cleanup = change->task != nullptr ? suspend(r, leave, change.get()) : nullptr;
    if (change->cleanup == nullptr) {
        delete change->task;
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    change->request = r;
    r->main->count++;
    send_next(change.release());
    return NGX_DONE;
}

ngx_int_t change_zone(ngx_http_request_t* r, Zone* zone, bool restore, const RateList& rates) {
    if (zone->redis == nullptr) {
        apply_rate(zone, restore, rates, r->connection->log);
        return send_json(r, NGX_HTTP_OK, describe_zone(r, zone));
    }
    auto* change = new (std::nothrow) Change;
    if (change == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    char text[kLongestRates];
    change->zone = zone;
    change->restore = restore;
    change->rates = rates;
    change->commands.push_back(
        change_rate(zone->redis->options.prefix, view(zone->name),
                    restore ? std::string_view() : std::string_view(text, print_rates(rates, text))));
    return start(r, change);
}

// Reads the rate that a body asks for; false if it asks for none, with a sentence of why.
bool read_rate(const Zone& zone, std::string_view body, RateList* rates, std::string* wrong) {
    constexpr const char* kForm = "accepted is an object such as {\"rate\":\"200r/m\"}";
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

// Whether a body is JSON, by what it says of itself.
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

// The body, as far as it is not too large; false if it cannot be read.
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
    return send_api_problem(r, NGX_HTTP_REQUEST_ENTITY_TOO_LARGE,
                            "the body is too large; accepted are " + std::to_string(kMostBody) + " bytes");
}

// The zone that the path names was found before; where the body has come, it is found again.
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
            answered = change_zone(r, zone, false, rates);
        }
    }
    ngx_http_finalize_request(r, answered);
}

}  // namespace

ngx_int_t api_patch(ngx_http_request_t* r, Zone*) {
    if (!is_json(r)) {
        return add_answer_header(r, "Accept-Patch", "application/json, application/merge-patch+json")
                   ? send_api_problem(r, NGX_HTTP_UNSUPPORTED_MEDIA_TYPE,
                                      "the body is not said to be JSON; accepted are the types "
                                      "application/json and application/merge-patch+json")
                   : NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    if (r->headers_in.content_length_n > static_cast<off_t>(kMostBody)) {
        return refuse_size(r);
    }
    const ngx_int_t read = ngx_http_read_client_request_body(r, on_body);
    return read >= NGX_HTTP_SPECIAL_RESPONSE ? read : NGX_DONE;
}

ngx_int_t api_restore(ngx_http_request_t* r, Zone* zone) { return change_zone(r, zone, true, {}); }

ngx_int_t api_reset(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments) {
    if (zone->redis == nullptr) {
        const bool known = forget_client(zone->table, zone->denials, arguments.key, this_process());
        return answer_reset(r, *zone, arguments, known);
    }
    auto* change = new (std::nothrow) Change;
    redis::Router* router = change != nullptr ? background_router(zone->redis) : nullptr;
    if (router == nullptr) {
        delete change;
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    const std::string& prefix = zone->redis->options.prefix;
    change->zone = zone;
    change->client = arguments.key;
    change->asked = arguments;
    change->commands.push_back(
        delete_client(prefix, view(zone->name), zone->policy.algorithm, arguments.key));
    change->commands.push_back(announce_reset(prefix, router->sharded(), zone->redis->shared->membership.id(),
                                              view(zone->name), arguments.key));
    return start(r, change);
}

ngx_int_t api_remaining(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments) {
    constexpr Micros kDeniedFor = 30 * kSecond;  // a user without rights may get them
    const bool here = knows_client(zone->table, arguments.key, this_process());
    if (here || zone->redis == nullptr) {
        return api_look(r, zone, arguments, here ? Known::kYes : Known::kNo);
    }
    const Micros denied = zone->redis->look_denied;
    if (denied != 0 && this_process().clock() - denied < kDeniedFor) {
        return api_look(r, zone, arguments, Known::kUnsure);
    }
    auto* change = new (std::nothrow) Change;
    if (change == nullptr) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    change->zone = zone;
    change->looks = true;
    change->asked = arguments;
    change->commands.push_back(
        find_client(zone->redis->options.prefix, view(zone->name), zone->policy.algorithm, arguments.key));
    return start(r, change);
}

}  // namespace rate_limit
