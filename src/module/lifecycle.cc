// The hooks of the module's life cycle, in the order in which nginx calls them.
#include "core/version_text.h"
#include "handlers/access.h"
#include "handlers/settle.h"
#include "handlers/shadow.h"
#include "nginx/background.h"
#include "nginx/history_timer.h"
#include "request/headers.h"
#include "request/response_reader.h"
#include "request/variables.h"

extern "C" {

// Before the http block is read.
ngx_int_t ngx_http_rate_limit_add_variables(ngx_conf_t* cf) {
    return rate_limit::add_variables(cf) ? NGX_OK : NGX_ERROR;
}

namespace {

// Adds the handler in front of those that earlier modules have added.
bool add_handler(ngx_conf_t* cf, ngx_http_phases phase, ngx_http_handler_pt handler) {
    auto* cmcf =
        static_cast<ngx_http_core_main_conf_t*>(ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module));
    auto* added = static_cast<ngx_http_handler_pt*>(ngx_array_push(&cmcf->phases[phase].handlers));
    if (added != nullptr) {
        *added = handler;
    }
    return added != nullptr;
}

// Null for a cycle without an http block.
ngx_http_rate_limit_main_conf_t* conf_of(const ngx_cycle_t* cycle) {
    return cycle->conf_ctx != nullptr
               ? static_cast<ngx_http_rate_limit_main_conf_t*>(
                     ngx_http_cycle_get_module_main_conf(cycle, ngx_http_rate_limit_module))
               : nullptr;
}

}  // namespace

// After the http block was read.
ngx_int_t ngx_http_rate_limit_init(ngx_conf_t* cf) {
    if (ngx_http_rate_limit_check_configuration(cf) != NGX_OK) {
        return NGX_ERROR;
    }
    const auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_rate_limit_module));
    if (!add_handler(cf, NGX_HTTP_ACCESS_PHASE, rate_limit::handle_access) ||
        (conf->has_precontent != 0 &&
         !add_handler(cf, NGX_HTTP_PRECONTENT_PHASE, rate_limit::handle_precontent)) ||
        (conf->has_settle != 0 && !add_handler(cf, NGX_HTTP_LOG_PHASE, rate_limit::handle_log))) {
        return NGX_ERROR;
    }
    rate_limit::add_header_filter();
    rate_limit::add_response_filters(cf);
    return NGX_OK;
}

// In the master, once the new configuration is in force.
ngx_int_t ngx_http_rate_limit_init_module(ngx_cycle_t* cycle) {
    if (ngx_process == NGX_PROCESS_SINGLE) {
        // Without workers, this process would continue the background tasks of zones that are gone.
        auto* old_cycle = const_cast<ngx_cycle_t*>(ngx_cycle);
        rate_limit::stop_background(old_cycle);
        rate_limit::stop_history(conf_of(old_cycle));
    }
    rate_limit::zone_replace_memory(cycle);
    if (ngx_test_config == 0) {
        ngx_log_error(NGX_LOG_NOTICE, cycle->log, 0, "%s", rate_limit::kNameAndVersion);
    }
    return NGX_OK;
}

// In each worker, before it accepts connections.
ngx_int_t ngx_http_rate_limit_init_process(ngx_cycle_t* cycle) {
    auto* conf = conf_of(cycle);
    const bool serves = ngx_process == NGX_PROCESS_WORKER || ngx_process == NGX_PROCESS_SINGLE;
    if (conf == nullptr || !serves) {
        return NGX_OK;
    }
    if (!rate_limit::start_background(conf)) {
        return NGX_ERROR;
    }
    rate_limit::start_history(conf);
    rate_limit::open_redis(conf);
    return NGX_OK;
}

// In each worker, before it exits. nginx reports sockets that are still open then.
void ngx_http_rate_limit_exit_process(ngx_cycle_t* cycle) {
    auto* conf = conf_of(cycle);
    if (conf == nullptr) {
        return;
    }
    rate_limit::stop_background(cycle);
    rate_limit::stop_history(conf);
    rate_limit::end_shadows();
    rate_limit::close_redis(conf);
}
}
