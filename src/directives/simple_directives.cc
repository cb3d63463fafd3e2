// Directives with one value: rate_limit_status, rate_limit_grpc_status, rate_limit_headers, rate_limit_body,
// rate_limit_dry_run and rate_limit_log_level.
#include <string>

#include "configuration/configuration.h"
#include "protocol/grpc.h"

namespace rate_limit {
namespace {

// The values of an enumeration as "a, b or c".
std::string enumerate_values(const ngx_conf_enum_t* values) {
    std::string text;
    for (const ngx_conf_enum_t* value = values; value->name.len != 0; value++) {
        text.append(value == values ? "" : value[1].name.len != 0 ? ", " : " or ").append(view(value->name));
    }
    return text;
}

ngx_uint_t* field_of(void* conf, const ngx_command_t* cmd) {
    return reinterpret_cast<ngx_uint_t*>(static_cast<char*>(conf) + cmd->offset);
}

// Puts the only parameter of a directive into `*value`. Returns null, or NGX_CONF_ERROR after an error was
// logged.
char* read_value(ngx_conf_t* cf, const ngx_command_t* cmd, void* conf, const char* accepted,
                 ngx_str_t* value) {
    if (cf->args->nelts == 1) {
        return refuse(cf, cmd, "requires one value: %s", accepted);
    }
    if (cf->args->nelts > 2) {
        return refuse(cf, cmd, "invalid parameter \"%V\", the directive requires one value: %s",
                      &words_of(cf)[2], accepted);
    }
    if (*field_of(conf, cmd) != NGX_CONF_UNSET_UINT) {
        return refuse(cf, cmd, "\"%V\" is duplicate, the directive must be given once here",
                      &words_of(cf)[1]);
    }
    *value = words_of(cf)[1];
    return nullptr;
}

}  // namespace
}  // namespace rate_limit

using rate_limit::field_of;
using rate_limit::read_value;
using rate_limit::refuse;
using rate_limit::view;

extern "C" {

char* ngx_http_rate_limit_status(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    constexpr char kAccepted[] = "a status from 400 to 599";
    ngx_str_t value;
    if (char* wrong = read_value(cf, cmd, conf, kAccepted, &value)) {
        return wrong;
    }
    std::uint64_t status = 0;
    if (!rate_limit::parse_number(view(value), 599, &status) || status < 400) {
        return refuse(cf, cmd, "invalid value \"%V\", it must be %s", &value, kAccepted);
    }
    *field_of(conf, cmd) = static_cast<ngx_uint_t>(status);
    return NGX_CONF_OK;
}

char* ngx_http_rate_limit_grpc_status(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    constexpr char kAccepted[] = "a code from 1 to 16 or off";
    static_assert(rate_limit::kGrpcLastCode == 16);
    ngx_str_t value;
    if (char* wrong = read_value(cf, cmd, conf, kAccepted, &value)) {
        return wrong;
    }
    std::uint64_t code = NGX_HTTP_RATE_LIMIT_GRPC_OFF;
    if (view(value) != "off" &&
        (!rate_limit::parse_number(view(value), rate_limit::kGrpcLastCode, &code) || code == 0)) {
        return refuse(cf, cmd, "invalid value \"%V\", it must be %s", &value, kAccepted);
    }
    *field_of(conf, cmd) = static_cast<ngx_uint_t>(code);
    return NGX_CONF_OK;
}

char* ngx_http_rate_limit_word(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    const auto* values = static_cast<const ngx_conf_enum_t*>(cmd->post);
    const std::string accepted = rate_limit::enumerate_values(values);
    ngx_str_t word;
    if (char* wrong = read_value(cf, cmd, conf, accepted.c_str(), &word)) {
        return wrong;
    }
    for (; values->name.len != 0; values++) {
        if (view(values->name) == view(word)) {
            *field_of(conf, cmd) = values->value;
            return NGX_CONF_OK;
        }
    }
    return refuse(cf, cmd, "invalid value \"%V\", it must be %s", &word, accepted.c_str());
}
}
