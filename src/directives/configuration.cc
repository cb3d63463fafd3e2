// Reads what all directives have in common, and the simple ones.
#include "directives/configuration.h"

#include <algorithm>

#include "nginx/api_settings.h"

namespace rate_limit {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_'; }

bool starts_with(std::string_view text, std::string_view prefix) {
    return text.substr(0, prefix.size()) == prefix;
}

// Cuts `rest` after its next variable, whose name goes to `*name`, empty if there is none. False for a $ that
// no name follows.
bool next_variable(std::string_view* rest, std::string_view* name) {
    *name = {};
    const std::size_t mark = rest->find('$');
    if (mark == std::string_view::npos) {
        *rest = {};
        return true;
    }
    rest->remove_prefix(mark + 1);
    const bool braces = !rest->empty() && rest->front() == '{';
    rest->remove_prefix(braces ? 1 : 0);
    std::size_t size = 0;
    while (size < rest->size() && is_name((*rest)[size])) {
        size++;
    }
    *name = rest->substr(0, size);
    rest->remove_prefix(size);
    const bool closed = !braces || (!rest->empty() && rest->front() == '}');
    return size != 0 && closed;
}

// The words that an enumeration accepts, as "a, b or c".
ngx_str_t words_accepted(const ngx_conf_enum_t* words, u_char* buffer, std::size_t size) {
    u_char* end = buffer;
    for (const ngx_conf_enum_t* word = words; word->name.len != 0; word++) {
        const char* before = word == words ? "" : word[1].name.len != 0 ? ", " : " or ";
        end = ngx_slprintf(end, buffer + size, "%s%V", before, &word->name);
    }
    return {static_cast<std::size_t>(end - buffer), buffer};
}

ngx_uint_t* field_of(void* conf, const ngx_command_t* cmd) {
    return reinterpret_cast<ngx_uint_t*>(static_cast<char*>(conf) + cmd->offset);
}

// The one word of a simple directive, in `*word`; null, or an error if it is not one or was given before.
char* read_word(ngx_conf_t* cf, const ngx_command_t* cmd, void* conf, const char* accepted, ngx_str_t* word) {
    if (cf->args->nelts == 1) {
        return refuse(cf, cmd, "a word is missing; accepted is %s", accepted);
    }
    if (cf->args->nelts > 2) {
        return refuse(cf, cmd, "\"%V\" is one word too many; accepted is %s", &words_of(cf)[2], accepted);
    }
    if (*field_of(conf, cmd) != NGX_CONF_UNSET_UINT) {
        return refuse(cf, cmd, "\"%V\" follows an earlier one; accepted is the directive once here",
                      &words_of(cf)[1]);
    }
    *word = words_of(cf)[1];
    return nullptr;
}

}  // namespace

bool option(const ngx_str_t& word, std::string_view name, ngx_str_t* value) {
    const std::string_view text = view(word);
    if (text.size() <= name.size() || !starts_with(text, name) || text[name.size()] != '=') {
        return false;
    }
    *value = ngx_str(text.substr(name.size() + 1));
    return true;
}

char* refuse_repeated(ngx_conf_t* cf, const ngx_command_t* cmd, ngx_uint_t first) {
    const ngx_str_t* words = words_of(cf);
    for (ngx_uint_t i = first + 1; i < cf->args->nelts; i++) {
        const std::string_view word = view(words[i]);
        const std::string_view name = word.substr(0, word.find('='));
        for (ngx_uint_t j = first; j < i; j++) {
            const std::string_view earlier = view(words[j]);
            if (earlier.substr(0, earlier.find('=')) == name) {
                return refuse(cf, cmd, "\"%V\" follows \"%V\"; accepted is each option once", &words[i],
                              &words[j]);
            }
        }
    }
    return nullptr;
}

Zone* find_zone(const ngx_http_rate_limit_main_conf_t* conf, const ngx_str_t& name) {
    auto** zones = static_cast<Zone**>(conf->zones.elts);
    for (ngx_uint_t i = 0; i < conf->zones.nelts; i++) {
        if (view(zones[i]->name) == view(name)) {
            return zones[i];
        }
    }
    return nullptr;
}

bool compile_value(ngx_conf_t* cf, const ngx_command_t* cmd, ngx_str_t* text,
                   ngx_http_complex_value_t* value) {
    std::string_view rest = view(*text);
    while (!rest.empty()) {
        std::string_view name;
        if (!next_variable(&rest, &name)) {
            refuse(cf, cmd, "\"%V\" has a $ without a name; accepted are variables such as $name and ${name}",
                   text);
            return false;
        }
    }
    ngx_http_compile_complex_value_t compile = {};
    compile.cf = cf;
    compile.value = text;
    compile.complex_value = value;
    return ngx_http_compile_complex_value(&compile) == NGX_OK;
}

bool is_variable_name(std::string_view text) {
    return !text.empty() && !is_digit(text[0]) && std::all_of(text.begin(), text.end(), is_name);
}

bool has_variable(std::string_view text, std::string_view name) {
    std::string_view found;
    while (!text.empty() && next_variable(&text, &found)) {
        if (!found.empty() && same_letters(found, name)) {
            return true;
        }
    }
    return false;
}

bool is_defined_variable(ngx_conf_t* cf, std::string_view name) {
    auto* cmcf =
        static_cast<ngx_http_core_main_conf_t*>(ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module));
    if (is_digit(name[0])) {
        return true;
    }
    const auto* keys = static_cast<ngx_hash_key_t*>(cmcf->variables_keys->keys.elts);
    for (ngx_uint_t i = 0; i < cmcf->variables_keys->keys.nelts; i++) {
        if (same_letters(view(keys[i].key), name)) {
            return true;
        }
    }
    const auto* prefixes = static_cast<ngx_http_variable_t*>(cmcf->prefix_variables.elts);
    for (ngx_uint_t i = 0; i < cmcf->prefix_variables.nelts; i++) {
        if (same_letters(name.substr(0, prefixes[i].name.len), view(prefixes[i].name))) {
            return true;
        }
    }
    return false;
}

std::string_view unknown_variable(ngx_conf_t* cf, const ngx_str_t& text) {
    std::string_view rest = view(text);
    std::string_view name;
    while (!rest.empty() && next_variable(&rest, &name)) {
        if (!name.empty() && !is_defined_variable(cf, name)) {
            return name;
        }
    }
    return {};
}

}  // namespace rate_limit

using rate_limit::field_of;
using rate_limit::read_word;
using rate_limit::refuse;
using rate_limit::view;

extern "C" {

char* ngx_http_rate_limit_status(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    ngx_str_t word;
    char* wrong = read_word(cf, cmd, conf, "a status from 400 to 599", &word);
    if (wrong != nullptr) {
        return wrong;
    }
    std::uint64_t status = 0;
    if (!rate_limit::parse_number(view(word), 599, &status) || status < 400) {
        return refuse(cf, cmd, "\"%V\" is not a status; accepted are numbers from 400 to 599", &word);
    }
    *field_of(conf, cmd) = static_cast<ngx_uint_t>(status);
    return NGX_CONF_OK;
}

char* ngx_http_rate_limit_word(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    const auto* words = static_cast<const ngx_conf_enum_t*>(cmd->post);
    u_char buffer[128];
    const ngx_str_t accepted = rate_limit::words_accepted(words, buffer, sizeof(buffer) - 1);
    buffer[accepted.len] = '\0';
    ngx_str_t word;
    char* wrong = read_word(cf, cmd, conf, reinterpret_cast<char*>(buffer), &word);
    if (wrong != nullptr) {
        return wrong;
    }
    for (; words->name.len != 0; words++) {
        if (view(words->name) == view(word)) {
            *field_of(conf, cmd) = words->value;
            return NGX_CONF_OK;
        }
    }
    return refuse(cf, cmd, "\"%V\" is not known; accepted are %V", &word, &accepted);
}

char* ngx_http_rate_limit_flag(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    ngx_str_t word;
    char* wrong = read_word(cf, cmd, conf, "on or off", &word);
    if (wrong != nullptr) {
        return wrong;
    }
    if (view(word) != "on" && view(word) != "off") {
        return refuse(cf, cmd, "\"%V\" is not known; accepted are on or off", &word);
    }
    *field_of(conf, cmd) = view(word) == "on" ? 1 : 0;
    return NGX_CONF_OK;
}

void* ngx_http_rate_limit_create_main_conf(ngx_conf_t* cf) {
    auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_pcalloc(cf->pool, sizeof(ngx_http_rate_limit_main_conf_t)));
    if (conf == nullptr || ngx_array_init(&conf->zones, cf->pool, 4, sizeof(void*)) != NGX_OK ||
        ngx_array_init(&conf->limits, cf->pool, 4, sizeof(void*)) != NGX_OK ||
        ngx_array_init(&conf->locations, cf->pool, 16, sizeof(void*)) != NGX_OK ||
        ngx_array_init(&conf->servers, cf->pool, 1, sizeof(void*)) != NGX_OK ||
        ngx_array_init(&conf->keys, cf->pool, 1, sizeof(void*)) != NGX_OK ||
        ngx_array_init(&conf->tokens, cf->pool, 1, sizeof(void*)) != NGX_OK) {
        return nullptr;
    }
    return conf;
}

void* ngx_http_rate_limit_create_loc_conf(ngx_conf_t* cf) {
    auto* conf = static_cast<ngx_http_rate_limit_loc_conf_t*>(
        ngx_pcalloc(cf->pool, sizeof(ngx_http_rate_limit_loc_conf_t)));
    if (conf == nullptr) {
        return nullptr;
    }
    // Set by pcalloc: limits = shadows = outer_limits = outer_shadows = NULL, lone_limit = NULL,
    // api = NULL.
    conf->status = NGX_CONF_UNSET_UINT;
    conf->headers = NGX_CONF_UNSET_UINT;
    conf->body = NGX_CONF_UNSET_UINT;
    conf->log_level = NGX_CONF_UNSET_UINT;
    conf->dry_run = NGX_CONF_UNSET;
    return conf;
}

char* ngx_http_rate_limit_merge_loc_conf(ngx_conf_t* cf, void* parent, void* child) {
    auto* prev = static_cast<ngx_http_rate_limit_loc_conf_t*>(parent);
    auto* conf = static_cast<ngx_http_rate_limit_loc_conf_t*>(child);
    auto* core =
        static_cast<ngx_http_core_loc_conf_t*>(ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module));
    if (conf->api == nullptr && prev->api != nullptr && core->noname && core->handler == nullptr) {
        // An `if` or limit_except inside the location.
        conf->api = prev->api;
        core->handler = static_cast<const rate_limit::ApiSettings*>(prev->api)->handler;
    }
    // The API is not limited by what stands outside its location; what else is inside that is.
    const auto inherit = [&](auto limits, auto outer) {
        ngx_array_t* above = prev->*limits != nullptr ? prev->*limits : prev->*outer;
        conf->*outer = conf->*limits != nullptr ? conf->*limits : above;
        if (conf->*limits == nullptr && conf->api != nullptr) {
            conf->*limits = prev->api != nullptr ? prev->*limits : nullptr;
        }
        if (conf->api == nullptr) {
            conf->*limits = conf->*outer;
        }
    };
    inherit(&ngx_http_rate_limit_loc_conf_t::limits, &ngx_http_rate_limit_loc_conf_t::outer_limits);
    inherit(&ngx_http_rate_limit_loc_conf_t::shadows, &ngx_http_rate_limit_loc_conf_t::outer_shadows);
    ngx_conf_merge_uint_value(conf->status, prev->status, NGX_HTTP_TOO_MANY_REQUESTS);
    ngx_conf_merge_uint_value(conf->headers, prev->headers, NGX_HTTP_RATE_LIMIT_HEADERS_LEGACY);
    ngx_conf_merge_uint_value(conf->body, prev->body, NGX_HTTP_RATE_LIMIT_BODY_AUTO);
    ngx_conf_merge_uint_value(conf->log_level, prev->log_level, NGX_LOG_ERR);
    ngx_conf_merge_value(conf->dry_run, prev->dry_run, 0);
    auto* main = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_rate_limit_module));
    auto** location = static_cast<ngx_http_rate_limit_loc_conf_t**>(ngx_array_push(&main->locations));
    if (location == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    *location = conf;
    conf->context = *static_cast<ngx_http_conf_ctx_t*>(cf->ctx);
    return NGX_CONF_OK;
}
}
