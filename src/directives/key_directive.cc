// The directive rate_limit_key.
#include "directives/key_directive.h"

#include <algorithm>

#include "nginx/collections.h"
#include "request/key.h"

namespace rate_limit {
namespace {

constexpr char kKeyForm[] = "$VARIABLE SOURCE ...";
constexpr char kSources[] =
    "ip, ip/V4,V6 such as ip/24,64, header:NAME, cookie:NAME, arg:NAME, jwt:CLAIM or $variable";

struct NamedKind {
    std::string_view prefix;
    KeySource::Kind kind;
};

constexpr NamedKind kNamedKinds[] = {{"header:", KeySource::Kind::kHeader},
                                     {"cookie:", KeySource::Kind::kCookie},
                                     {"arg:", KeySource::Kind::kArgument},
                                     {"jwt:", KeySource::Kind::kClaim}};

// Whether the source can have this name: a token of HTTP, or characters that are not encoded in a query.
bool is_name_of(KeySource::Kind kind, std::string_view name) {
    std::string_view marks = "!#$%&'*+-.^_`|~";
    if (kind == KeySource::Kind::kArgument) {
        marks = "!$'*-.^_`|~@,;()[]/";
    }
    const auto fits = [&](char c) {
        return is_letter_or_digit(c) || marks.find(c) != std::string_view::npos;
    };
    return !name.empty() && (kind == KeySource::Kind::kClaim || std::all_of(name.begin(), name.end(), fits));
}

// Makes the prefix of the values of a source: the source as it is written, in lower case unless its name is
// case-sensitive. False if memory is exhausted.
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
            return refuse(cf, cmd, "\"%V\" is duplicate", &word);
        }
        if (label.substr(0, earlier.size()) == earlier || earlier.substr(0, label.size()) == label) {
            return refuse(
                cf, cmd,
                "\"%V\" is ambiguous with an earlier source, it must be a name that neither begins with the "
                "other name and \":\" nor the reverse",
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
        return refuse(cf, cmd,
                      "invalid prefix length in \"%V\", it must be ip or ip/V4,V6 with V4 from 1 to 32 and "
                      "V6 from 1 to "
                      "128",
                      &word);
    }
    return add(word, source);
}

char* KeyReader::read_variable(const ngx_str_t& word) const {
    KeySource source = {};
    source.kind = KeySource::Kind::kVariable;
    source.name = ngx_str(view(word).substr(1));
    if (!is_variable_name(view(source.name))) {
        return refuse(cf, cmd, "invalid variable \"%V\", it must be a name such as $name", &word);
    }
    if (same_letters(view(source.name), view(client->name))) {
        return refuse(cf, cmd, "\"%V\" refers to itself, it must be another variable", &word);
    }
    source.variable = ngx_http_get_variable_index(cf, &source.name);
    return source.variable == NGX_ERROR ? static_cast<char*>(NGX_CONF_ERROR) : add(word, source);
}

char* KeyReader::read_named(const ngx_str_t& word, const NamedKind& kind) const {
    KeySource source = {};
    source.kind = kind.kind;
    source.name = ngx_str(view(word).substr(kind.prefix.size()));
    if (!is_name_of(kind.kind, view(source.name))) {
        return refuse(cf, cmd, "invalid name in \"%V\", it must be %s", &word, kSources);
    }
    return add(word, source);
}

char* KeyReader::read_source(const ngx_str_t& word) const {
    const std::string_view text = view(word);
    const auto* sources = static_cast<const KeySource*>(client->sources.elts);
    const ngx_uint_t count = client->sources.nelts;
    if (count != 0 && sources[count - 1].kind == KeySource::Kind::kAddress) {
        return refuse(cf, cmd,
                      "\"%V\" has no effect after ip, since every client has an address: ip must be the last "
                      "source",
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
    return refuse(cf, cmd, "unknown source \"%V\", it must be %s", &word, kSources);
}

char* define_variable(ngx_conf_t* cf, const ngx_command_t* cmd, ClientKey* client) {
    const ngx_str_t& word = words_of(cf)[1];
    client->name = ngx_str(view(word).substr(1));
    if (is_defined_variable(cf, view(client->name))) {
        return refuse(cf, cmd, "variable \"%V\" is duplicate, it must be a new name", &word);
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
        return refuse(cf, cmd, "requires a variable and a source: %s with the source %s", kKeyForm, kSources);
    }
    if (words[1].data[0] != '$' || !is_variable_name(view(words[1]).substr(1))) {
        return refuse(cf, cmd, "invalid variable \"%V\", it must be %s", &words[1], kKeyForm);
    }
    auto* client = pool_new<ClientKey>(cf->pool);
    auto** slot = static_cast<ClientKey**>(ngx_array_push(&conf->keys));
    if (client == nullptr || slot == nullptr ||
        ngx_array_init(&client->sources, cf->pool, cf->args->nelts, sizeof(KeySource)) != NGX_OK) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    *slot = client;
    set_position(cf, client);
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

// Whether a variable is the rate_limit_key at `index` or a later one. A source must be defined before its
// key, so that keys do not refer to each other in a circle.
bool is_later_key(const ngx_http_rate_limit_main_conf_t& conf, const ngx_str_t& variable, ngx_uint_t index) {
    const auto keys = pointers<ClientKey>(conf.keys);
    return std::any_of(keys.begin() + index, keys.end(),
                       [&](const ClientKey* key) { return same_letters(view(key->name), view(variable)); });
}

bool resolve_source(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf, ngx_uint_t index,
                    const KeySource& source) {
    const ClientKey& client = *pointers<ClientKey>(conf.keys).begin()[index];
    if (source.kind == KeySource::Kind::kClaim && !conf.has_jwt_keys) {
        return refuse_at(cf, "rate_limit_key", client,
                         "\"jwt:%V\" of \"$%V\" requires \"rate_limit_jwt_key\"", &source.name, &client.name);
    }
    if (source.kind == KeySource::Kind::kVariable && !is_defined_variable(cf, view(source.name))) {
        return refuse_at(cf, "rate_limit_key", client, "unknown variable \"$%V\" of \"$%V\", %s",
                         &source.name, &client.name, kVariableAccepted);
    }
    if (source.kind == KeySource::Kind::kVariable && is_later_key(conf, source.name, index)) {
        return refuse_at(cf, "rate_limit_key", client,
                         "\"$%V\" is a source of \"$%V\" and defined after it, it must be defined before",
                         &source.name, &client.name);
    }
    return true;
}

}  // namespace

bool resolve_keys(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf) {
    auto** clients = static_cast<ClientKey**>(conf.keys.elts);
    for (ngx_uint_t i = 0; i < conf.keys.nelts; i++) {
        for (const KeySource& source : elements<KeySource>(clients[i]->sources)) {
            if (!resolve_source(cf, conf, i, source)) {
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
