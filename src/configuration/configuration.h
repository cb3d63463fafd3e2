// What all directives share: log lines, variables, and access to the configuration.
#pragma once

#include "nginx/zone.h"

namespace rate_limit {

// Log lines about a directive have one form: the directive, the wrong word, what is accepted, and the
// position.
template <class... Arguments>
void log_directive(ngx_uint_t level, ngx_conf_t* cf, ngx_err_t error, const ngx_command_t* cmd,
                   const char* format, Arguments... arguments) {
    u_char text[NGX_MAX_CONF_ERRSTR];
    u_char* end = ngx_snprintf(text, sizeof(text), format, arguments...);
    ngx_str_t message = {static_cast<std::size_t>(end - text), text};
    ngx_conf_log_error(level, cf, error, "\"%V\": %V", &cmd->name, &message);
}

// Logs an error of the directive that is being read. Returns NGX_CONF_ERROR.
template <class... Arguments>
char* refuse(ngx_conf_t* cf, const ngx_command_t* cmd, const char* format, Arguments... arguments) {
    log_directive(NGX_LOG_EMERG, cf, 0, cmd, format, arguments...);
    return static_cast<char*>(NGX_CONF_ERROR);
}

// Logs a warning about the directive that is being read: it is valid, and most likely a mistake.
template <class... Arguments>
void warn(ngx_conf_t* cf, const ngx_command_t* cmd, const char* format, Arguments... arguments) {
    log_directive(NGX_LOG_WARN, cf, 0, cmd, format, arguments...);
}

// The same for a directive that was read before. `directive` has its position: the members file and line.
template <class Directive, class... Arguments>
void log_directive_at(ngx_uint_t level, ngx_conf_t* cf, const char* name, const Directive& directive,
                      const char* format, Arguments... arguments) {
    u_char text[NGX_MAX_CONF_ERRSTR];
    u_char* end = ngx_snprintf(text, sizeof(text), format, arguments...);
    ngx_str_t message = {static_cast<std::size_t>(end - text), text};
    ngx_log_error(level, cf->log, 0, "\"%s\": %V in %V:%ui", name, &message, &directive.file, directive.line);
}

// Returns false.
template <class Directive, class... Arguments>
bool refuse_at(ngx_conf_t* cf, const char* name, const Directive& directive, const char* format,
               Arguments... arguments) {
    log_directive_at(NGX_LOG_EMERG, cf, name, directive, format, arguments...);
    return false;
}

template <class Directive, class... Arguments>
void warn_at(ngx_conf_t* cf, const char* name, const Directive& directive, const char* format,
             Arguments... arguments) {
    log_directive_at(NGX_LOG_WARN, cf, name, directive, format, arguments...);
}

// The name of the directive of a limit.
inline const char* directive_of(const AppliedLimit& limit) {
    return limit.shadow ? "rate_limit_shadow" : "rate_limit";
}

// Remembers the position of the directive that is being read, for log_directive_at().
template <class Directive>
void set_position(ngx_conf_t* cf, Directive* directive) {
    directive->file = cf->conf_file->file.name;
    directive->line = cf->conf_file->line;
}

// What a variable must be that is not defined, for messages.
constexpr char kVariableAccepted[] =
    "it must be a variable that nginx, a module or the configuration defines";

// The words of the directive that is being read; the first is its name.
inline ngx_str_t* words_of(ngx_conf_t* cf) { return static_cast<ngx_str_t*>(cf->args->elts); }

inline ngx_http_rate_limit_main_conf_t* main_conf_of(ngx_conf_t* cf) {
    return static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_rate_limit_module));
}

inline ngx_http_rate_limit_main_conf_t* main_conf_of(ngx_http_request_t* r) {
    return static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_get_module_main_conf(r, ngx_http_rate_limit_module));
}

inline ngx_http_core_main_conf_t* core_main_conf_of(ngx_conf_t* cf) {
    return static_cast<ngx_http_core_main_conf_t*>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module));
}

inline ngx_http_core_loc_conf_t* core_loc_conf_of(ngx_conf_t* cf) {
    return static_cast<ngx_http_core_loc_conf_t*>(
        ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module));
}

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

inline bool is_letter_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c);
}

// Compiles text with variables; false after an error was logged.
bool compile_value(ngx_conf_t* cf, const ngx_command_t* cmd, ngx_str_t* text,
                   ngx_http_complex_value_t* value);

// The zone of this name; null if there is none.
Zone* find_zone(const ngx_http_rate_limit_main_conf_t* conf, const ngx_str_t& name);

// Whether a text can be the name of a variable that a directive defines; $1 is not one.
bool is_variable_name(std::string_view text);

// Whether a text that was compiled contains this variable.
bool has_variable(std::string_view text, std::string_view name);

// Whether nginx, a module or the part of the configuration that is read so far defines a variable.
bool is_defined_variable(ngx_conf_t* cf, std::string_view name);

// The name of the first variable in `text` that is not defined; empty if there is none. Only once the whole
// configuration is read.
std::string_view unknown_variable(ngx_conf_t* cf, const ngx_str_t& text);

}  // namespace rate_limit
