// The configuration at each level (http, server, location), and how a level inherits from the level above.
#include "configuration/configuration.h"
#include "nginx/api_settings.h"
#include "protocol/grpc.h"

namespace {

using Limits = ngx_array_t* ngx_http_rate_limit_loc_conf_t::*;

// Inherits limits or shadows. API locations do not inherit outer limits; locations nested in them do.
void inherit(const ngx_http_rate_limit_loc_conf_t& prev, Limits limits, Limits outer,
             ngx_http_rate_limit_loc_conf_t* conf) {
    ngx_array_t* above = prev.*limits != nullptr ? prev.*limits : prev.*outer;
    conf->*outer = conf->*limits != nullptr ? conf->*limits : above;
    if (conf->*limits == nullptr && conf->api != nullptr) {
        conf->*limits = prev.api != nullptr ? prev.*limits : nullptr;
    }
    if (conf->api == nullptr) {
        conf->*limits = conf->*outer;
    }
}

}  // namespace

extern "C" {

void* ngx_http_rate_limit_create_main_conf(ngx_conf_t* cf) {
    auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_pcalloc(cf->pool, sizeof(ngx_http_rate_limit_main_conf_t)));
    if (conf == nullptr || ngx_array_init(&conf->zones, cf->pool, 4, sizeof(void*)) != NGX_OK ||
        ngx_array_init(&conf->limits, cf->pool, 4, sizeof(void*)) != NGX_OK ||
        ngx_array_init(&conf->locations, cf->pool, 16, sizeof(void*)) != NGX_OK ||
        ngx_array_init(&conf->servers, cf->pool, 1, sizeof(void*)) != NGX_OK ||
        ngx_array_init(&conf->keys, cf->pool, 1, sizeof(void*)) != NGX_OK ||
        ngx_array_init(&conf->tokens, cf->pool, 1, sizeof(void*)) != NGX_OK ||
        ngx_array_init(&conf->body_variables, cf->pool, 1, sizeof(void*)) != NGX_OK) {
        return nullptr;
    }
    return conf;
}

void* ngx_http_rate_limit_create_srv_conf(ngx_conf_t* cf) {
    // Set by pcalloc: verifier = NULL, token = NULL.
    return ngx_pcalloc(cf->pool, sizeof(ngx_http_rate_limit_srv_conf_t));
}

char* ngx_http_rate_limit_merge_srv_conf(ngx_conf_t*, void* parent, void* child) {
    const auto* prev = static_cast<ngx_http_rate_limit_srv_conf_t*>(parent);
    auto* conf = static_cast<ngx_http_rate_limit_srv_conf_t*>(child);
    if (conf->verifier == nullptr) {
        conf->verifier = prev->verifier;
    }
    if (conf->token == nullptr) {
        conf->token = prev->token;
    }
    return NGX_CONF_OK;
}

void* ngx_http_rate_limit_create_loc_conf(ngx_conf_t* cf) {
    auto* conf = static_cast<ngx_http_rate_limit_loc_conf_t*>(
        ngx_pcalloc(cf->pool, sizeof(ngx_http_rate_limit_loc_conf_t)));
    if (conf == nullptr) {
        return nullptr;
    }
    // Set by pcalloc: limits = shadows = outer_limits = outer_shadows = NULL, access = { 0 },
    // precontent = NULL, lone_limit = NULL, api = NULL, requests = responses = NULL.
    conf->status = NGX_CONF_UNSET_UINT;
    conf->grpc_status = NGX_CONF_UNSET_UINT;
    conf->headers = NGX_CONF_UNSET_UINT;
    conf->body = NGX_CONF_UNSET_UINT;
    conf->log_level = NGX_CONF_UNSET_UINT;
    conf->dry_run = NGX_CONF_UNSET;
    return conf;
}

char* ngx_http_rate_limit_merge_loc_conf(ngx_conf_t* cf, void* parent, void* child) {
    auto* prev = static_cast<ngx_http_rate_limit_loc_conf_t*>(parent);
    auto* conf = static_cast<ngx_http_rate_limit_loc_conf_t*>(child);
    ngx_http_core_loc_conf_t* core = rate_limit::core_loc_conf_of(cf);
    if (conf->api == nullptr && prev->api != nullptr && core->noname && core->handler == nullptr) {
        // This is an `if` or limit_except in the API location.
        conf->api = prev->api;
        core->handler = static_cast<const rate_limit::ApiSettings*>(prev->api)->handler;
    }
    inherit(*prev, &ngx_http_rate_limit_loc_conf_t::limits, &ngx_http_rate_limit_loc_conf_t::outer_limits,
            conf);
    inherit(*prev, &ngx_http_rate_limit_loc_conf_t::shadows, &ngx_http_rate_limit_loc_conf_t::outer_shadows,
            conf);
    conf->requests = conf->requests != nullptr ? conf->requests : prev->requests;
    conf->responses = conf->responses != nullptr ? conf->responses : prev->responses;
    ngx_conf_merge_uint_value(conf->status, prev->status, NGX_HTTP_TOO_MANY_REQUESTS);
    ngx_conf_merge_uint_value(conf->grpc_status, prev->grpc_status, rate_limit::kGrpcResourceExhausted);
    ngx_conf_merge_uint_value(conf->headers, prev->headers, NGX_HTTP_RATE_LIMIT_HEADERS_LEGACY);
    ngx_conf_merge_uint_value(conf->body, prev->body, NGX_HTTP_RATE_LIMIT_BODY_AUTO);
    ngx_conf_merge_uint_value(conf->log_level, prev->log_level, NGX_LOG_ERR);
    ngx_conf_merge_value(conf->dry_run, prev->dry_run, 0);
    ngx_http_rate_limit_main_conf_t* main = rate_limit::main_conf_of(cf);
    auto** location = static_cast<ngx_http_rate_limit_loc_conf_t**>(ngx_array_push(&main->locations));
    if (location == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    *location = conf;
    conf->context = *static_cast<ngx_http_conf_ctx_t*>(cf->ctx);
    return NGX_CONF_OK;
}
}
