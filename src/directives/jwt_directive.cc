// The directives rate_limit_jwt_key and rate_limit_jwt_source.
#include <cerrno>
#include <memory>
#include <string>

#include "directives/configuration.h"
#include "directives/file.h"
#include "identity/verifier.h"
#include "nginx/jwt.h"

namespace rate_limit {
namespace {

constexpr std::size_t kLongestKeyFile = 1 << 20;  // bytes
constexpr char kKeyForm[] = "ALGORITHM FILE [leeway=TIME] or jwks FILE [leeway=TIME]";

void destroy_verifier(void* verifier) { delete static_cast<identity::Verifier*>(verifier); }

// The verifier of this level of the configuration; null if there is no memory.
identity::Verifier* verifier_of(ngx_conf_t* cf, ngx_http_rate_limit_srv_conf_t* conf) {
    if (conf->verifier == nullptr) {
        ngx_pool_cleanup_t* cleanup = ngx_pool_cleanup_add(cf->pool, 0);
        conf->verifier = cleanup != nullptr ? new (std::nothrow) identity::Verifier : nullptr;
        if (conf->verifier != nullptr) {
            cleanup->handler = destroy_verifier;
            cleanup->data = conf->verifier;
        }
    }
    return static_cast<identity::Verifier*>(conf->verifier);
}

// Reads a file whole; null, or an error that names it.
char* read_key_file(ngx_conf_t* cf, const ngx_command_t* cmd, const ngx_str_t& word, std::string* content) {
    ngx_str_t name = word;
    if (ngx_conf_full_name(cf->cycle, &name, 1) != NGX_OK) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    ngx_file_info_t info;
    const ngx_err_t error = read_file(name, kLongestKeyFile, content, &info);
    if (error == EFBIG) {
        return refuse(cf, cmd, "\"%V\" is too long; accepted are files of at most %uz bytes", &word,
                      kLongestKeyFile);
    }
    if (error != 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, error,
                           "\"%V\": \"%V\" cannot be read; accepted is a file with a key", &cmd->name, &name);
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    return nullptr;
}

char* read_leeway(ngx_conf_t* cf, const ngx_command_t* cmd, const ngx_str_t& word, double* leeway) {
    constexpr ngx_int_t kMost = 86400;
    ngx_str_t value = {};
    if (!option(word, "leeway", &value)) {
        return refuse(cf, cmd, "\"%V\" is not known; accepted is leeway=TIME", &word);
    }
    const ngx_int_t seconds = ngx_parse_time(&value, 1);
    if (seconds == NGX_ERROR || seconds > kMost) {
        return refuse(cf, cmd, "\"%V\" is not a time; accepted are times from 0s to 1d", &word);
    }
    *leeway = static_cast<double>(seconds);
    return nullptr;
}

char* add_keys(ngx_conf_t* cf, const ngx_command_t* cmd, double leeway, identity::Verifier* verifier) {
    const ngx_str_t* words = words_of(cf);
    const std::string_view algorithm = view(words[1]);
    if (algorithm != "jwks" && !identity::is_algorithm(algorithm)) {
        return refuse(cf, cmd, "\"%V\" is not known; accepted are jwks, %s", &words[1],
                      identity::kAlgorithmsAccepted);
    }
    std::string content;
    if (char* wrong = read_key_file(cf, cmd, words[2], &content)) {
        return wrong;
    }
    std::vector<std::string> ignored;
    const std::string wrong = algorithm == "jwks" ? verifier->keys.add_set(content, leeway, &ignored)
                                                  : verifier->keys.add(algorithm, content, leeway);
    for (const std::string& why : ignored) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0, "\"%V\": in \"%V\" ignored is %s", &cmd->name, &words[2],
                           why.c_str());
    }
    const char* crowded = verifier->keys.crowded(identity::Verifier::kMostTries);
    if (crowded != nullptr) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "\"%V\": with \"%V\" there are more than %uz keys for %s; a token that names no "
                           "key id is tried with "
                           "so many of them",
                           &cmd->name, &words[2], identity::Verifier::kMostTries, crowded);
    }
    explicit_bzero(content.data(), content.size());
    return wrong.empty() ? NGX_CONF_OK : refuse(cf, cmd, "\"%V\" %s", &words[2], wrong.c_str());
}

char* read_jwt_key(ngx_conf_t* cf, ngx_command_t* cmd, ngx_http_rate_limit_srv_conf_t* conf) {
    if (cf->args->nelts < 3) {
        return refuse(cf, cmd, "an algorithm or a file is missing; accepted is %s", kKeyForm);
    }
    if (char* wrong = refuse_repeated(cf, cmd, 3)) {
        return wrong;
    }
    double leeway = 0;
    for (ngx_uint_t i = 3; i < cf->args->nelts; i++) {
        if (char* wrong = read_leeway(cf, cmd, words_of(cf)[i], &leeway)) {
            return wrong;
        }
    }
    identity::Verifier* verifier = verifier_of(cf, conf);
    if (verifier == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    auto* main = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_rate_limit_module));
    main->has_jwt_keys = 1;
    return add_keys(cf, cmd, leeway, verifier);
}

char* read_jwt_source(ngx_conf_t* cf, ngx_command_t* cmd, ngx_http_rate_limit_srv_conf_t* conf) {
    constexpr char kAccepted[] = "accepted is one variable that holds the token, such as $cookie_token";
    ngx_str_t* words = words_of(cf);
    if (cf->args->nelts != 2) {
        return cf->args->nelts == 1
                   ? refuse(cf, cmd, "a variable is missing; %s", kAccepted)
                   : refuse(cf, cmd, "\"%V\" is one word too many; %s", &words[2], kAccepted);
    }
    if (words[1].len == 0 || words[1].data[0] != '$' || !is_variable_name(view(words[1]).substr(1))) {
        return refuse(cf, cmd, "\"%V\" is not a variable; %s", &words[1], kAccepted);
    }
    if (conf->token != nullptr) {
        return refuse(cf, cmd, "\"%V\" follows an earlier one; accepted is the directive once here",
                      &words[1]);
    }
    auto* main = static_cast<ngx_http_rate_limit_main_conf_t*>(
        ngx_http_conf_get_module_main_conf(cf, ngx_http_rate_limit_module));
    auto* source = pool_new<TokenSource>(cf->pool);
    auto** slot = static_cast<TokenSource**>(ngx_array_push(&main->tokens));
    if (source == nullptr || slot == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    *slot = source;
    conf->token = source;
    source->name = ngx_str(view(words[1]).substr(1));
    source->variable = ngx_http_get_variable_index(cf, &source->name);
    source->file = cf->conf_file->file.name;
    source->line = cf->conf_file->line;
    return source->variable != NGX_ERROR ? NGX_CONF_OK : static_cast<char*>(NGX_CONF_ERROR);
}

}  // namespace

bool resolve_tokens(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf) {
    auto** sources = static_cast<TokenSource**>(conf.tokens.elts);
    for (ngx_uint_t i = 0; i < conf.tokens.nelts; i++) {
        if (!is_defined_variable(cf, view(sources[i]->name))) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"rate_limit_jwt_source\": variable \"$%V\" does not exist; accepted are "
                          "variables that nginx, a "
                          "module or the configuration defines in %V:%ui",
                          &sources[i]->name, &sources[i]->file, sources[i]->line);
            return false;
        }
    }
    const auto* cmcf =
        static_cast<ngx_http_core_main_conf_t*>(ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module));
    const auto* used = static_cast<ngx_http_variable_t*>(cmcf->variables.elts);
    for (ngx_uint_t i = 0; i < cmcf->variables.nelts; i++) {
        const std::string_view name = view(used[i].name);
        if (!conf.has_jwt_keys && name.substr(0, kClaimPrefix.size()) == kClaimPrefix) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"$%V\" needs keys that tokens are verified with; accepted is it with "
                          "rate_limit_jwt_key",
                          &used[i].name);
            return false;
        }
    }
    return true;
}

}  // namespace rate_limit

extern "C" {

char* ngx_http_rate_limit_jwt_key(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_jwt_key(cf, cmd, static_cast<ngx_http_rate_limit_srv_conf_t*>(conf));
}

char* ngx_http_rate_limit_jwt_source(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_jwt_source(cf, cmd, static_cast<ngx_http_rate_limit_srv_conf_t*>(conf));
}

void* ngx_http_rate_limit_create_srv_conf(ngx_conf_t* cf) {
    // Set by pcalloc: verifier = NULL, token = NULL.
    return ngx_pcalloc(cf->pool, sizeof(ngx_http_rate_limit_srv_conf_t));
}

char* ngx_http_rate_limit_merge_srv_conf(ngx_conf_t*, void* parent, void* child) {
    const auto* prev = static_cast<ngx_http_rate_limit_srv_conf_t*>(parent);
    auto* conf = static_cast<ngx_http_rate_limit_srv_conf_t*>(child);
    if (conf->verifier == nullptr) {
        conf->verifier = prev->verifier;
    }
    if (conf->token == nullptr) {
        conf->token = prev->token;
    }
    return NGX_CONF_OK;
}
}
