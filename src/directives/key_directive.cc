// The directive rate_limit_key.
#include <algorithm>

#include "directives/configuration.h"
#include "nginx/key.h"

namespace rate_limit {
namespace {

constexpr char kKeyForm[] = "$VARIABLE SOURCE ...";
constexpr char kDeciders[] =
    "ip, ip/V4,V6 such as ip/24,64, header:NAME, cookie:NAME, arg:NAME, jwt:CLAIM and $variable";

struct NamedKind {
    std::string_view prefix;
    KeySource::Kind kind;
};

constexpr NamedKind kNamedKinds[] = {{"header:", KeySource::Kind::kHeader},
                                     {"cookie:", KeySource::Kind::kCookie},
                                     {"arg:", KeySource::Kind::kArgument},
                                     {"jwt:", KeySource::Kind::kClaim}};

// Whether a name is one that the source can have: a token of HTTP, or what stands unencoded in a query.
bool is_name_of(KeySource::Kind kind, std::string_view name) {
    std::string_view marks = "!#$%&'*+-.^_`|~";
    if (kind == KeySource::Kind::kArgument) {
        marks = "!$'*-.^_`|~@,;()[]/";
    }
    const auto fits = [&](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               marks.find(c) != std::string_view::npos;
    };
    return !name.empty() && (kind == KeySource::Kind::kClaim || std::all_of(name.begin(), name.end(), fits));
}

// What values of a source begin with: the source as it is written, in small letters if these do not matter.
bool make_label(ngx_conf_t* cf, const ngx_str_t& word, KeySource* source) {
    auto* data = static_cast<u_char*>(ngx_pnalloc(cf->pool, word.len + 1));
    if (data == nullptr) {
        return false;
    }
    ngx_memcpy(data, word.data, word.len);
    if (source->kind != KeySource::Kind::kClaim) {
        ngx_strlow(data, word.data, word.len);
    }
    if (source->kind == KeySource::Kind::kHeader) {
        std::replace(data, data + word.len, u_char{'_'}, u_char{'-'});
    }
    data[word.len] = ':';
    source->label = {word.len + 1, data};
    return true;
}

// A rate_limit_key while it is being read.
struct KeyReader {
    ngx_conf_t* cf;
    ngx_command_t* cmd;
    ClientKey* client;

    char* read_source(const ngx_str_t& word) const;
    char* read_address(const ngx_str_t& word) const;
    char* read_variable(const ngx_str_t& word) const;
    char* read_named(const ngx_str_t& word, const NamedKind& kind) const;
    char* add(const ngx_str_t& word, KeySource source) const;
};

char* KeyReader::add(const ngx_str_t& word, KeySource source) const {
    if (!make_label(cf, word, &source)) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    const auto* sources = static_cast<const KeySource*>(client->sources.elts);
    for (ngx_uint_t i = 0; i < client->sources.nelts; i++) {
        const std::string_view label = view(source.label);
        const std::string_view earlier = view(sources[i].label);
        if (label == earlier) {
            return refuse(cf, cmd, "\"%V\" stands twice; accepted is each source once", &word);
        }
        if (label.substr(0, earlier.size()) == earlier || earlier.substr(0, label.size()) == label) {
            return refuse(
                cf, cmd,
                "\"%V\" could not be told from an earlier source, since one name begins with the other and "
                "\":\"; accepted are other names",
                &word);
        }
    }
    auto* slot = static_cast<KeySource*>(ngx_array_push(&client->sources));
    if (slot == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    *slot = source;
    return nullptr;
}

char* KeyReader::read_address(const ngx_str_t& word) const {
    KeySource source = {};
    source.kind = KeySource::Kind::kAddress;
    if (!identity::parse_prefixes(view(word).substr(2), &source.prefixes)) {
        return refuse(
            cf, cmd,
            "\"%V\" has wrong prefix lengths; accepted are ip and ip/V4,V6 with V4 from 1 to 32 and "
            "V6 from 1 to 128",
            &word);
    }
    return add(word, source);
}

char* KeyReader::read_variable(const ngx_str_t& word) const {
    KeySource source = {};
    source.kind = KeySource::Kind::kVariable;
    source.name = ngx_str(view(word).substr(1));
    if (!is_variable_name(view(source.name))) {
        return refuse(cf, cmd, "\"%V\" is not a variable; accepted are names such as $name", &word);
    }
    if (same_letters(view(source.name), view(client->name))) {
        return refuse(cf, cmd, "\"%V\" is what is being defined; accepted are other variables", &word);
    }
    source.variable = ngx_http_get_variable_index(cf, &source.name);
    return source.variable == NGX_ERROR ? static_cast<char*>(NGX_CONF_ERROR) : add(word, source);
}

char* KeyReader::read_named(const ngx_str_t& word, const NamedKind& kind) const {
    KeySource source = {};
    source.kind = kind.kind;
    source.name = ngx_str(view(word).substr(kind.prefix.size()));
    if (!is_name_of(kind.kind, view(source.name))) {
        return refuse(cf, cmd, "\"%V\" has no name that one can have; accepted are %s", &word, kDeciders);
    }
    return add(word, source);
}

char* KeyReader::read_source(const ngx_str_t& word) const {
    const std::string_view text = view(word);
    const auto* sources = static_cast<const KeySource*>(client->sources.elts);
    const ngx_uint_t count = client->sources.nelts;
    if (count != 0 && sources[count - 1].kind == KeySource::Kind::kAddress) {
        return refuse(cf, cmd,
                      "\"%V\" would never be asked: every client has an address; accepted is ip as the last",
                      &word);
    }
    if (text == "ip" || text.substr(0, 3) == "ip/") {
        return read_address(word);
    }
    if (!text.empty() && text[0] == '$') {
        return read_variable(word);
    }
    for (const NamedKind& kind : kNamedKinds) {
        if (text.substr(0, kind.prefix.size()) == kind.prefix) {
            return read_named(word, kind);
        }
    }
    return refuse(cf, cmd, "\"%V\" is not a source; accepted are %s", &word, kDeciders);
}

char* define_variable(ngx_conf_t* cf, const ngx_command_t* cmd, ClientKey* client) {
    const ngx_str_t& word = words_of(cf)[1];
    client->name = ngx_str(view(word).substr(1));
    if (is_defined_variable(cf, view(client->name))) {
        return refuse(cf, cmd, "\"%V\" is defined already; accepted is a new name", &word);
    }
    ngx_http_variable_t* variable = ngx_http_add_variable(cf, &client->name, 0);
    if (variable == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    variable->get_handler = get_client_key;
    variable->data = reinterpret_cast<uintptr_t>(client);
    return nullptr;
}

char* read_key(ngx_conf_t* cf, ngx_command_t* cmd, ngx_http_rate_limit_main_conf_t* conf) {
    ngx_str_t* words = words_of(cf);
    if (cf->args->nelts < 3) {
        return refuse(cf, cmd, "a variable or a source is missing; accepted is %s with %s", kKeyForm,
                      kDeciders);
    }
    if (words[1].data[0] != '$' || !is_variable_name(view(words[1]).substr(1))) {
        return refuse(cf, cmd, "\"%V\" is not a variable; accepted is %s", &words[1], kKeyForm);
    }
    auto* client = pool_new<ClientKey>(cf->pool);
    auto** slot = static_cast<ClientKey**>(ngx_array_push(&conf->keys));
    if (client == nullptr || slot == nullptr ||
        ngx_array_init(&client->sources, cf->pool, cf->args->nelts, sizeof(KeySource)) != NGX_OK) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    *slot = client;
    client->file = cf->conf_file->file.name;
    client->line = cf->conf_file->line;
    if (char* wrong = define_variable(cf, cmd, client)) {
        return wrong;
    }
    KeyReader reader = {cf, cmd, client};
    for (ngx_uint_t i = 2; i < cf->args->nelts; i++) {
        if (char* wrong = reader.read_source(words[i])) {
            return wrong;
        }
    }
    return NGX_CONF_OK;
}

// Whether a variable is a rate_limit_key that is not defined before the one at `index`: they could go round
// in circles.
bool is_later_key(const ngx_http_rate_limit_main_conf_t& conf, const ngx_str_t& variable, ngx_uint_t index) {
    auto** clients = static_cast<ClientKey**>(conf.keys.elts);
    for (ngx_uint_t i = index; i < conf.keys.nelts; i++) {
        if (same_letters(view(clients[i]->name), view(variable))) {
            return true;
        }
    }
    return false;
}

bool resolve_source(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf, ngx_uint_t index,
                    const KeySource& source) {
    const ClientKey& client = *static_cast<ClientKey**>(conf.keys.elts)[index];
    if (source.kind == KeySource::Kind::kClaim && !conf.has_jwt_keys) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"rate_limit_key\": \"jwt:%V\" of \"$%V\" needs keys that tokens are verified with; "
                      "accepted is it with rate_limit_jwt_key in %V:%ui",
                      &source.name, &client.name, &client.file, client.line);
        return false;
    }
    if (source.kind == KeySource::Kind::kVariable && !is_defined_variable(cf, view(source.name))) {
        ngx_log_error(
            NGX_LOG_EMERG, cf->log, 0,
            "\"rate_limit_key\": variable \"$%V\" of \"$%V\" does not exist; accepted are variables "
            "that nginx, a module or the configuration defines in %V:%ui",
            &source.name, &client.name, &client.file, client.line);
        return false;
    }
    if (source.kind == KeySource::Kind::kVariable && is_later_key(conf, source.name, index)) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"rate_limit_key\": \"$%V\" is a source of \"$%V\" and defined after it; accepted are "
                      "keys that are "
                      "defined before in %V:%ui",
                      &source.name, &client.name, &client.file, client.line);
        return false;
    }
    return true;
}

}  // namespace

bool resolve_keys(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf) {
    auto** clients = static_cast<ClientKey**>(conf.keys.elts);
    for (ngx_uint_t i = 0; i < conf.keys.nelts; i++) {
        const auto* sources = static_cast<const KeySource*>(clients[i]->sources.elts);
        for (ngx_uint_t j = 0; j < clients[i]->sources.nelts; j++) {
            if (!resolve_source(cf, conf, i, sources[j])) {
                return false;
            }
        }
    }
    return true;
}

}  // namespace rate_limit

extern "C" char* ngx_http_rate_limit_key(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_key(cf, cmd, static_cast<ngx_http_rate_limit_main_conf_t*>(conf));
}
