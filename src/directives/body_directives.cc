// The directives rate_limit_request and rate_limit_response.
#include "configuration/options.h"
#include "nginx/collections.h"
#include "nginx/shared_state.h"
#include "request/body_values.h"

namespace rate_limit {
namespace {

constexpr std::size_t kDefaultMost = 64 * 1024;
constexpr std::size_t kLeastMost = 1024;
constexpr std::size_t kMostMost = 16 * 1024 * 1024;
constexpr std::string_view kSource = "json:";

// A rate_limit_request or rate_limit_response while it is being read.
struct BodyReaderDirective : DirectiveReader {
    BodySettings* settings;
    bool is_request;
    std::size_t most;
};

Parsed read_max(BodyReaderDirective* reader, const OptionValue& value) {
    ngx_str_t text = value.text;
    const ssize_t size = ngx_parse_size(&text);
    if (size == NGX_ERROR || static_cast<std::uint64_t>(size) < value.least ||
        static_cast<std::uint64_t>(size) > value.most) {
        return Parsed::kInvalid;
    }
    reader->most = static_cast<std::size_t>(size);
    return Parsed::kOk;
}

constexpr Option<BodyReaderDirective> kRequestOptions[] = {
    {"max", "SIZE", "the largest body that is accepted", "a size from 1k to 16m", read_max, kLeastMost,
     kMostMost},
};

const char* form_of(bool is_request) {
    return is_request ? "$VARIABLE json:PATH [max=SIZE]" : "$VARIABLE json:PATH";
}

BodyVariable* find_variable(const ngx_array_t& variables, std::string_view name) {
    for (BodyVariable* variable : pointers<BodyVariable>(variables)) {
        if (same_letters(view(variable->name), name)) {
            return variable;
        }
    }
    return nullptr;
}

// Defines the variable of a directive; null after an error was logged.
BodyVariable* define_variable(const BodyReaderDirective& reader, const ngx_str_t& word) {
    ngx_http_rate_limit_main_conf_t* conf = main_conf_of(reader.cf);
    ngx_str_t name = ngx_str(view(word).substr(1));
    if (is_defined_variable(reader.cf, view(name))) {
        refuse(reader.cf, reader.cmd, "variable \"%V\" is duplicate, it must be a new name", &word);
        return nullptr;
    }
    if (conf->body_variables.nelts == 0 && !add_body_statistics(reader.cf, conf)) {
        return nullptr;
    }
    auto* made = pool_new<BodyVariable>(reader.cf->pool);
    auto** slot = static_cast<BodyVariable**>(ngx_array_push(&conf->body_variables));
    ngx_http_variable_t* variable = ngx_http_add_variable(reader.cf, &name, NGX_HTTP_VAR_NOCACHEABLE);
    if (made == nullptr || slot == nullptr || variable == nullptr) {
        return nullptr;
    }
    *slot = made;
    made->name = name;
    made->is_request = reader.is_request;
    variable->get_handler = get_body_variable;
    variable->data = reinterpret_cast<uintptr_t>(made);
    return made;
}

// The variable of a directive, which an earlier directive of the same name may have defined; null after an
// error was logged.
BodyVariable* variable_of(const BodyReaderDirective& reader, const ngx_str_t& word) {
    if (word.data[0] != '$' || !is_variable_name(view(word).substr(1))) {
        refuse(reader.cf, reader.cmd, "invalid variable \"%V\", it must be %s", &word,
               form_of(reader.is_request));
        return nullptr;
    }
    BodyVariable* known = find_variable(main_conf_of(reader.cf)->body_variables, view(word).substr(1));
    if (known == nullptr) {
        return define_variable(reader, word);
    }
    if (known->is_request != reader.is_request) {
        refuse(reader.cf, reader.cmd, "variable \"%V\" is also of %s, it must be another name", &word,
               reader.is_request ? "rate_limit_response" : "rate_limit_request");
        return nullptr;
    }
    const BodySettings& here = *reader.settings;
    for (std::size_t i = 0; i < here.paths.size; i++) {
        if (here.variables[i] == known) {
            refuse(reader.cf, reader.cmd, "variable \"%V\" is duplicate here", &word);
            return nullptr;
        }
    }
    return known;
}

char* read_path(const BodyReaderDirective& reader, const ngx_str_t& word) {
    body::Paths* paths = &reader.settings->paths;
    if (view(word).substr(0, kSource.size()) != kSource) {
        return refuse(reader.cf, reader.cmd,
                      "invalid source \"%V\", it must be json:PATH such as "
                      "json:usage.total_tokens",
                      &word);
    }
    if (paths->size == body::kMaxPaths) {
        return refuse(reader.cf, reader.cmd, "\"%V\" is one path too many here, there must be at most %uz",
                      &word, body::kMaxPaths);
    }
    if (const char* must_be =
            body::parse_path(view(word).substr(kSource.size()), &paths->paths[paths->size])) {
        return refuse(reader.cf, reader.cmd, "invalid path in \"%V\", it must be %s", &word, must_be);
    }
    return nullptr;
}

// All rate_limit_request of a level have one max=.
char* set_most(const BodyReaderDirective& reader) {
    const std::size_t most = reader.most != 0 ? reader.most : kDefaultMost;
    BodySettings* settings = reader.settings;
    if (settings->paths.size != 0 && settings->most != most) {
        return refuse(reader.cf, reader.cmd,
                      "max= differs from an earlier rate_limit_request here, it must be %uz", settings->most);
    }
    settings->most = most;
    return nullptr;
}

char* read_body_directive(ngx_conf_t* cf, ngx_command_t* cmd, void** settings, bool is_request) {
    ngx_str_t* words = words_of(cf);
    if (cf->args->nelts < 3) {
        return refuse(cf, cmd, "requires a variable and a path: %s", form_of(is_request));
    }
    if (!is_request && cf->args->nelts > 3) {
        return refuse(cf, cmd, "unknown parameter \"%V\", it must be %s", &words[3], form_of(is_request));
    }
    if (*settings == nullptr) {
        *settings = ngx_pcalloc(cf->pool, sizeof(BodySettings));
    }
    BodyReaderDirective reader = {{cf, cmd, 3}, static_cast<BodySettings*>(*settings), is_request, 0};
    if (reader.settings == nullptr || (is_request && read_options(&reader, kRequestOptions) != nullptr)) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    BodyVariable* variable = variable_of(reader, words[1]);
    if (variable == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    if (char* wrong = read_path(reader, words[2])) {
        return wrong;
    }
    if (char* wrong = set_most(reader)) {
        return wrong;
    }
    reader.settings->variables[reader.settings->paths.size++] = variable;
    return NGX_CONF_OK;
}

}  // namespace
}  // namespace rate_limit

extern "C" char* ngx_http_rate_limit_request(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_body_directive(
        cf, cmd, &static_cast<ngx_http_rate_limit_loc_conf_t*>(conf)->requests, true);
}

extern "C" char* ngx_http_rate_limit_response(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_body_directive(
        cf, cmd, &static_cast<ngx_http_rate_limit_loc_conf_t*>(conf)->responses, false);
}
