// Finds the number of a variable in the body that was read, and counts bodies.
#include "request/body_values.h"

#include "request/counters.h"

namespace rate_limit {
namespace {

// The number of a variable; empty if the body has none.
std::string_view number_of(const ReadBody* read, const BodyVariable* variable) {
    for (std::size_t i = 0; read != nullptr && i < read->settings->paths.size; i++) {
        if (read->settings->variables[i] == variable) {
            return read->reader.number(i);
        }
    }
    return {};
}

}  // namespace

ngx_int_t get_body_variable(ngx_http_request_t* r, ngx_http_variable_value_t* value, uintptr_t data) {
    const auto* variable = reinterpret_cast<const BodyVariable*>(data);
    const RequestState* state = request_state(r);
    const ReadBody* read = state == nullptr       ? nullptr
                           : variable->is_request ? state->request_body
                                                  : state->response_body;
    const std::string_view number = number_of(read, variable);
    value->valid = number.empty() ? 0 : 1;
    value->not_found = number.empty() ? 1 : 0;
    value->no_cacheable = 1;
    value->len = static_cast<unsigned>(number.size());
    value->data = ngx_str(number).data;
    return NGX_OK;
}

ReadBody* new_read_body(ngx_http_request_t* r, const BodySettings& settings, body::Format format) {
    auto* read = static_cast<ReadBody*>(ngx_palloc(r->main->pool, sizeof(ReadBody)));
    if (read != nullptr) {
        read->settings = &settings;
        read->reader.begin(&settings.paths, format);
    }
    return read;
}

BodyResult finish_body(ReadBody* read) {
    const body::Syntax syntax = read->reader.finish();
    bool found = false;
    for (std::size_t i = 0; i < read->settings->paths.size; i++) {
        found = found || !read->reader.number(i).empty();
    }
    switch (syntax) {
        case body::Syntax::kMalformed:
            return BodyResult::kMalformed;
        case body::Syntax::kTooLarge:
            return BodyResult::kTooLarge;
        default:
            return found ? BodyResult::kRead : BodyResult::kMissing;
    }
}

void count_body(ngx_http_request_t* r, BodyKind kind, BodyResult result) {
    const auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_get_module_main_conf(r, ngx_http_rate_limit_module));
    if (is_observed(r)) {
        static_cast<BodyStatistics*>(conf->body_statistics)
            ->count(static_cast<unsigned>(ngx_worker), kind, result);
    }
}

}  // namespace rate_limit
