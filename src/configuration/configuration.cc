// What all directives share.
#include "configuration/configuration.h"

#include <algorithm>

#include "nginx/collections.h"

namespace rate_limit {
namespace {

bool is_name(char c) { return is_letter_or_digit(c) || c == '_'; }

// Cuts `rest` after its next variable, and puts the name of the variable into `*name`: empty if there is no
// variable. False for a $ without a name.
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

}  // namespace

Zone* find_zone(const ngx_http_rate_limit_main_conf_t* conf, const ngx_str_t& name) {
    for (Zone* zone : pointers<Zone>(conf->zones)) {
        if (view(zone->name) == view(name)) {
            return zone;
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
            refuse(cf, cmd, "invalid variable name in \"%V\", it must be $name or ${name}", text);
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
    const ngx_http_core_main_conf_t& core = *core_main_conf_of(cf);
    if (is_digit(name[0])) {
        return true;
    }
    for (const ngx_hash_key_t& key : elements<ngx_hash_key_t>(core.variables_keys->keys)) {
        if (same_letters(view(key.key), name)) {
            return true;
        }
    }
    const auto prefixes = elements<const ngx_http_variable_t>(core.prefix_variables);
    return std::any_of(prefixes.begin(), prefixes.end(), [&](const ngx_http_variable_t& prefix) {
        return same_letters(name.substr(0, prefix.name.len), view(prefix.name));
    });
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
