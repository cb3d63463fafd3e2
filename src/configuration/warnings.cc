// Warnings about directives that have no effect, or another effect than it seems, because of other modules.
//
// Modules do not export their configuration. The warnings need its first machine words, whose layout is the
// same in nginx 1.22 to 1.31. A pointer among these words is followed only if it points into the memory pool
// of the configuration, and an array is used only if it has the element size that the module would use. In an
// nginx with another layout, a warning is missing and nothing else happens.
#include "configuration/warnings.h"

#include <algorithm>
#include <vector>

#include "configuration/configuration.h"
#include "nginx/api_settings.h"
#include "nginx/collections.h"
#include "request/key.h"

namespace rate_limit {
namespace {

// The configuration of the module of this name, as machine words; null if there is no such module.
const uintptr_t* words_of_module(ngx_conf_t* cf, void** confs, std::string_view name) {
    for (ngx_module_t** module = cf->cycle->modules; *module != nullptr; module++) {
        if ((*module)->type == NGX_HTTP_MODULE && name == (*module)->name) {
            return static_cast<const uintptr_t*>(confs[(*module)->ctx_index]);
        }
    }
    return nullptr;
}

// Whether `size` bytes at an address are memory of the pool.
bool is_in_pool(const ngx_pool_t* pool, const void* address, std::size_t size) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    if (at == 0 || at % sizeof(uintptr_t) != 0) {
        return false;
    }
    for (const ngx_pool_t* block = pool; block != nullptr; block = block->d.next) {
        const auto end = reinterpret_cast<uintptr_t>(block->d.last);
        if (at > reinterpret_cast<uintptr_t>(block) && at < end && size <= end - at) {
            return true;
        }
    }
    for (const ngx_pool_large_t* large = pool->large; large != nullptr; large = large->next) {
        if (large->alloc == address) {
            return true;
        }
    }
    return false;
}

// The array that a word points to; null unless it is an array of elements of this size.
const ngx_array_t* array_at(ngx_conf_t* cf, uintptr_t word, std::size_t size) {
    const auto* array = reinterpret_cast<const ngx_array_t*>(word);
    const bool is_array = is_in_pool(cf->pool, array, sizeof(ngx_array_t)) && array->pool == cf->pool &&
                          array->size == size && array->nelts != 0 && array->nelts <= array->nalloc &&
                          is_in_pool(cf->pool, array->elts, array->nelts * size);
    return is_array ? array : nullptr;
}

// The compiled script of the rewrite module, as machine words; some of them are pointers to functions.
struct Script {
    const uintptr_t* words = nullptr;
    std::size_t count = 0;

    bool is(std::size_t index, ngx_http_script_code_pt code) const {
        return words[index] == reinterpret_cast<uintptr_t>(code);
    }

    // The code at this word; null if the script ends before the code does.
    template <class Code>
    const Code* at(std::size_t index) const {
        return (count - index) * sizeof(uintptr_t) >= sizeof(Code)
                   ? reinterpret_cast<const Code*>(words + index)
                   : nullptr;
    }
};

Script script_of(ngx_conf_t* cf, void** confs) {
    const uintptr_t* words = words_of_module(cf, confs, "ngx_http_rewrite_module");
    const ngx_array_t* codes = words != nullptr ? array_at(cf, words[0], 1) : nullptr;
    if (codes == nullptr) {
        return {};
    }
    return {static_cast<const uintptr_t*>(codes->elts), codes->nelts / sizeof(uintptr_t)};
}

// The `if` at this word; null if there is none.
const ngx_http_script_if_code_t* if_at(const Script& script, std::size_t index) {
    return script.is(index, ngx_http_script_if_code) ? script.at<ngx_http_script_if_code_t>(index) : nullptr;
}

// Whether the script may end here, so that the request continues with the next phase.
bool may_leave(const Script& script, std::size_t index) {
#if (NGX_PCRE)
    if (script.is(index, ngx_http_script_regex_start_code)) {
        const auto* regex = script.at<ngx_http_script_regex_code_t>(index);
        return regex == nullptr || regex->test == 0;  // a rewrite, not the condition of an `if`
    }
#endif
    return script.is(index, ngx_http_script_break_code);
}

// Whether the script between two words answers each request with a `return`: one outside of any `if`, before
// which the script cannot end.
bool always_returns(const Script& script, std::size_t begin, std::size_t end) {
    std::size_t inner_end = begin;  // the end of the last `if`
    for (std::size_t i = begin; i < std::min(end, script.count); i++) {
        if (i >= inner_end && script.is(i, ngx_http_script_return_code)) {
            return true;
        }
        if (may_leave(script, i)) {
            return false;
        }
        if (const auto* inner = if_at(script, i)) {
            inner_end = std::max(inner_end, i + inner->next / sizeof(uintptr_t));
        }
    }
    return false;
}

bool has_return(const Script& script) {
    for (std::size_t i = 0; i < script.count; i++) {
        if (script.is(i, ngx_http_script_return_code)) {
            return true;
        }
    }
    return false;
}

// The first limit that this level has itself and does not inherit; null if there is none.
const AppliedLimit* own_limit(const ngx_http_rate_limit_loc_conf_t& conf, void** context) {
    for (const ngx_array_t* limits : {conf.limits, conf.shadows}) {
        if (limits != nullptr && limits->nelts != 0) {
            const AppliedLimit* first = *static_cast<AppliedLimit**>(limits->elts);
            if (first->context == context) {
                return first;
            }
        }
    }
    return nullptr;
}

void warn_of_return(ngx_conf_t* cf, const ngx_http_rate_limit_loc_conf_t& conf, void** context) {
    if (const AppliedLimit* limit = own_limit(conf, context)) {
        warn_at(cf, directive_of(*limit), *limit,
                "zone \"%V\" has no effect here: \"return\" answers each request before limits are checked",
                &limit->zone_name);
    }
}

// Warns of limits in a location, a server or an `if` that answers with `return`.
void warn_of_returns(ngx_conf_t* cf, const ngx_http_rate_limit_loc_conf_t& conf) {
    const Script script = script_of(cf, conf.context.loc_conf);
    if (always_returns(script, 0, script.count)) {
        warn_of_return(cf, conf, conf.context.loc_conf);
    }
    for (std::size_t i = 0; i < script.count; i++) {
        const auto* inner = if_at(script, i);
        if (inner != nullptr && inner->loc_conf != nullptr &&
            always_returns(script, i + sizeof(*inner) / sizeof(uintptr_t),
                           i + inner->next / sizeof(uintptr_t))) {
            const auto* own = static_cast<const ngx_http_rate_limit_loc_conf_t*>(
                inner->loc_conf[ngx_http_rate_limit_module.ctx_index]);
            warn_of_return(cf, *own, inner->loc_conf);
        }
    }
}

bool has_basic_authentication(ngx_conf_t* cf, void** confs) {
    const uintptr_t* words = words_of_module(cf, confs, "ngx_http_auth_basic_module");
    const auto* realm =
        words != nullptr ? reinterpret_cast<const ngx_http_complex_value_t*>(words[0]) : nullptr;
    return is_in_pool(cf->pool, realm, sizeof(*realm)) && view(realm->value) != "off";
}

// Whether auth_request is on here.
bool has_auth_request(ngx_conf_t* cf, void** confs) {
    const uintptr_t* words = words_of_module(cf, confs, "ngx_http_auth_request_module");
    return words != nullptr && words[0] != 0;  // the length of the URI
}

bool has_access_rule(ngx_conf_t* cf, void** confs) {
    const uintptr_t* access = words_of_module(cf, confs, "ngx_http_access_module");
    return (access != nullptr && access[0] != 0) || has_basic_authentication(cf, confs) ||
           has_auth_request(cf, confs);
}

// Whether modules other than nginx's own check access.
bool has_other_access_modules(ngx_conf_t* cf, void** confs) {
    const ngx_http_core_main_conf_t* cmcf = core_main_conf_of(cf);
    std::size_t known = 0;
    for (const char* name :
         {"ngx_http_access_module", "ngx_http_auth_basic_module", "ngx_http_auth_request_module"}) {
        known += words_of_module(cf, confs, name) != nullptr ? 1 : 0;
    }
    return cmcf->phases[NGX_HTTP_ACCESS_PHASE].handlers.nelts > known;
}

bool needs_client_certificate([[maybe_unused]] ngx_conf_t* cf, [[maybe_unused]] void** servers) {
#if (NGX_HTTP_SSL)
    const auto* ssl =
        reinterpret_cast<const ngx_http_ssl_srv_conf_t*>(words_of_module(cf, servers, "ngx_http_ssl_module"));
    return ssl != nullptr && ssl->verify == 1;
#else
    return false;
#endif
}

// Whether only this machine can reach an address.
bool is_local(const sockaddr* address) {
    if (address->sa_family == AF_INET) {
        const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
#if (NGX_HAVE_INET6)
    if (address->sa_family == AF_INET6) {
        return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) != 0;
    }
#endif
    return address->sa_family == AF_UNIX;
}

bool serves(const ngx_http_conf_addr_t& address, const ngx_http_core_srv_conf_t* server) {
    const auto servers = pointers<ngx_http_core_srv_conf_t>(address.servers);
    return std::find(servers.begin(), servers.end(), server) != servers.end();
}

// Whether only this machine can reach a server.
bool is_local_server(ngx_conf_t* cf, const ngx_http_core_srv_conf_t* server) {
    const ngx_http_core_main_conf_t* cmcf = core_main_conf_of(cf);
    if (cmcf->ports == nullptr) {
        return true;
    }
    for (const ngx_http_conf_port_t& port : elements<ngx_http_conf_port_t>(*cmcf->ports)) {
        for (const ngx_http_conf_addr_t& address : elements<ngx_http_conf_addr_t>(port.addrs)) {
            if (serves(address, server) && !is_local(address.opt.sockaddr)) {
                return false;
            }
        }
    }
    return true;
}

// Warns of an API with write=on and no access rule. An `if` with a `return` may be an access rule, and so may
// a module that is not known here.
void warn_of_open_api(ngx_conf_t* cf, const ngx_http_rate_limit_loc_conf_t& conf) {
    const auto* api = static_cast<const ApiSettings*>(conf.api);
    const ngx_http_conf_ctx_t& context = conf.context;
    if (api == nullptr || api->context != context.loc_conf || !api->write) {
        return;
    }
    const auto* location =
        static_cast<ngx_http_core_loc_conf_t*>(context.loc_conf[ngx_http_core_module.ctx_index]);
    const auto* server =
        static_cast<ngx_http_core_srv_conf_t*>(context.srv_conf[ngx_http_core_module.ctx_index]);
    void** except = location->limit_except != 0 ? location->limit_except_loc_conf : nullptr;
    if (location->internal == 1 || is_local_server(cf, server) || has_access_rule(cf, context.loc_conf) ||
        (except != nullptr && has_access_rule(cf, except)) ||
        needs_client_certificate(cf, context.srv_conf) || has_return(script_of(cf, context.loc_conf)) ||
        has_return(script_of(cf, server->ctx->loc_conf)) || has_other_access_modules(cf, context.loc_conf)) {
        return;
    }
    const auto* name = reinterpret_cast<const char*>(api->directive.data);
    warn_at(
        cf, name, *api,
        "\"write=on\" lets any client change rates and reset clients, since the location has no allow, deny, "
        "auth_basic or auth_request");
}

// A variable of auth_request_set, as nginx's module stores it.
struct SetVariable {
    ngx_int_t index;
    ngx_http_complex_value_t value;
    ngx_http_set_variable_pt set_handler;
};

// The variables of auth_request_set here; null if there are none.
const ngx_array_t* set_variables(ngx_conf_t* cf, void** confs) {
    constexpr std::size_t kWords = 3;  // a URI of two words, and the variables
    const uintptr_t* words = words_of_module(cf, confs, "ngx_http_auth_request_module");
    return is_in_pool(cf->pool, words, kWords * sizeof(uintptr_t)) && has_auth_request(cf, confs)
               ? array_at(cf, words[kWords - 1], sizeof(SetVariable))
               : nullptr;
}

// Whether a text contains a variable, directly or as a source of a rate_limit_key. One pass finds all keys,
// as a key refers only to earlier keys.
bool depends_on(const ngx_http_rate_limit_main_conf_t& conf, std::string_view text, std::string_view name) {
    std::vector<std::string_view> names = {name};
    for (const ClientKey* key : pointers<ClientKey>(conf.keys)) {
        const auto sources = elements<const KeySource>(key->sources);
        const bool depends = std::any_of(sources.begin(), sources.end(), [&](const auto& source) {
            const auto same = [&](std::string_view other) { return same_letters(view(source.name), other); };
            return source.kind == KeySource::Kind::kVariable && std::any_of(names.begin(), names.end(), same);
        });
        if (depends) {
            names.push_back(view(key->name));
        }
    }
    return std::any_of(names.begin(), names.end(), [&](auto one) { return has_variable(text, one); });
}

// Warns of keys with a variable of auth_request_set: auth_request runs after limits of the access phase are
// checked. There is no warning in a location that only internal redirects reach, since the variable may be
// set before.
void warn_of_late_keys(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf,
                       const ngx_http_rate_limit_loc_conf_t& here) {
    void** context = here.context.loc_conf;
    const auto* location = static_cast<ngx_http_core_loc_conf_t*>(context[ngx_http_core_module.ctx_index]);
    const ngx_array_t* set = set_variables(cf, context);
    if (set == nullptr || here.limits == nullptr || location->named || location->internal == 1) {
        return;
    }
    const ngx_http_core_main_conf_t* cmcf = core_main_conf_of(cf);
    const auto* variables = static_cast<const ngx_http_variable_t*>(cmcf->variables.elts);
    for (AppliedLimit* limit : pointers<AppliedLimit>(*here.limits)) {
        for (const SetVariable& variable : elements<const SetVariable>(*set)) {
            const auto index = static_cast<ngx_uint_t>(variable.index);
            if (!limit->warned && limit->phase == NGX_HTTP_ACCESS_PHASE && index < cmcf->variables.nelts &&
                depends_on(conf, view(limit->zone->key.value), view(variables[index].name))) {
                limit->warned = true;
                warn_at(cf, directive_of(*limit), *limit,
                        "the key of zone \"%V\" has \"$%V\", which is still empty when limits are checked: "
                        "auth_request_set sets it afterwards, and \"phase=precontent\" checks after that",
                        &limit->zone_name, &variables[index].name);
            }
        }
    }
}

}  // namespace

void warn_of_mistakes(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf) {
    for (const auto* location : pointers<ngx_http_rate_limit_loc_conf_t>(conf.locations)) {
        warn_of_returns(cf, *location);
        warn_of_open_api(cf, *location);
        warn_of_late_keys(cf, conf, *location);
    }
}

}  // namespace rate_limit
