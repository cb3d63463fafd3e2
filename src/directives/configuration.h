// How the module reads its configuration and says what is wrong with it.
#pragma once

#include "nginx/zone.h"

namespace rate_limit {

// One line in nginx's own form that names the directive, the word and what is accepted. Returns
// NGX_CONF_ERROR.
template <class... Arguments>
char* refuse(ngx_conf_t* cf, const ngx_command_t* cmd, const char* format, Arguments... arguments) {
    u_char text[NGX_MAX_CONF_ERRSTR];
    u_char* end = ngx_snprintf(text, sizeof(text), format, arguments...);
    ngx_str_t message = {static_cast<std::size_t>(end - text), text};
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"%V\": %V", &cmd->name, &message);
    return static_cast<char*>(NGX_CONF_ERROR);
}

// One line in the same form of what is accepted, and most likely not meant.
template <class... Arguments>
void warn(ngx_conf_t* cf, const ngx_command_t* cmd, const char* format, Arguments... arguments) {
    u_char text[NGX_MAX_CONF_ERRSTR];
    u_char* end = ngx_snprintf(text, sizeof(text), format, arguments...);
    ngx_str_t message = {static_cast<std::size_t>(end - text), text};
    ngx_conf_log_error(NGX_LOG_WARN, cf, 0, "\"%V\": %V", &cmd->name, &message);
}

// The words of the directive that is being read; the first is its name.
inline ngx_str_t* words_of(ngx_conf_t* cf) { return static_cast<ngx_str_t*>(cf->args->elts); }

// If `word` is NAME=…, puts what follows into `*value`.
bool option(const ngx_str_t& word, std::string_view name, ngx_str_t* value);

// Null, or an error if an option stands twice among the words from `first` on.
char* refuse_repeated(ngx_conf_t* cf, const ngx_command_t* cmd, ngx_uint_t first);

// Reads text with variables; false after an error was logged.
bool compile_value(ngx_conf_t* cf, const ngx_command_t* cmd, ngx_str_t* text,
                   ngx_http_complex_value_t* value);

// The zone of this name; null if there is none.
Zone* find_zone(const ngx_http_rate_limit_main_conf_t* conf, const ngx_str_t& name);

// Whether a text can be the name of a variable; a group of a regular expression is none.
bool is_variable_name(std::string_view text);

// Whether a text, which was compiled, has this variable.
bool has_variable(std::string_view text, std::string_view name);

// Whether nginx, a module or the configuration as far as it is read defines a variable.
bool is_defined_variable(ngx_conf_t* cf, std::string_view name);

// Each checks one kind of directive once the whole configuration is read; false after an error was logged.
bool resolve_keys(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf);
bool resolve_tokens(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf);

// Warns of hosts of a Redis that have no address now. False, after an error was logged, if none has one and
// every zone that uses the Redis fails closed: nginx would answer each of their requests with an error.
bool check_redis_hosts(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf,
                       const RedisServer& server);

// The name of the first variable in `text` that nothing defines; empty if there is none. Only once all is
// read.
std::string_view unknown_variable(ngx_conf_t* cf, const ngx_str_t& text);

}  // namespace rate_limit
