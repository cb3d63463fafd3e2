// The directives rate_limit_jwt_key and rate_limit_jwt_source.
#include "directives/jwt_directive.h"

#include <memory>
#include <string>

#include "configuration/file.h"
#include "configuration/options.h"
#include "identity/verifier.h"
#include "nginx/collections.h"
#include "request/jwt.h"

namespace rate_limit {
namespace {

constexpr std::size_t kLongestKeyFile = 1 << 20;  // bytes
constexpr char kKeyForm[] = "ALGORITHM FILE [leeway=TIME] or jwks FILE [leeway=TIME]";

void destroy_verifier(void* verifier) { delete static_cast<identity::Verifier*>(verifier); }

// The verifier of this level of the configuration; null if the pool is exhausted.
identity::Verifier* verifier_of(ngx_conf_t* cf, ngx_http_rate_limit_srv_conf_t* conf) {
    if (conf->verifier == nullptr) {
        ngx_pool_cleanup_t* cleanup = ngx_pool_cleanup_add(cf->pool, 0);
        if (cleanup == nullptr) {
            return nullptr;
        }
        conf->verifier = new identity::Verifier;
        cleanup->handler = destroy_verifier;
        cleanup->data = conf->verifier;
    }
    return static_cast<identity::Verifier*>(conf->verifier);
}

// A rate_limit_jwt_key while it is being read.
struct JwtKeyReader : DirectiveReader {
    double leeway = 0;  // seconds
};

Parsed read_leeway(JwtKeyReader* reader, const OptionValue& value) {
    ngx_str_t text = value.text;
    const ngx_int_t seconds = ngx_parse_time(&text, 1);
    reader->leeway = static_cast<double>(seconds);
    return seconds == NGX_ERROR || static_cast<std::uint64_t>(seconds) > value.most ? Parsed::kInvalid
                                                                                    : Parsed::kOk;
}

constexpr Option<JwtKeyReader> kJwtKeyOptions[] = {
    {"leeway", "TIME", "the maximum difference between the clocks of the signer and the verifier",
     "a time from 0s to 1d", read_leeway, 0, 86400},
};

char* add_keys(ngx_conf_t* cf, const ngx_command_t* cmd, double leeway, identity::Verifier* verifier) {
    const ngx_str_t* words = words_of(cf);
    const std::string_view algorithm = view(words[1]);
    if (algorithm != "jwks" && !identity::is_algorithm(algorithm)) {
        return refuse(cf, cmd, "unknown algorithm \"%V\", it must be jwks, %s", &words[1],
                      identity::kAlgorithmsAccepted);
    }
    std::string content;
    ngx_file_info_t info;
    if (char* wrong = read_conf_file(cf, cmd, words[2], words[2], kLongestKeyFile, "a file with a key",
                                     &content, &info)) {
        return wrong;
    }
    std::vector<std::string> ignored;
    const std::string wrong = algorithm == "jwks" ? verifier->keys.add_set(content, leeway, &ignored)
                                                  : verifier->keys.add(algorithm, content, leeway);
    for (const std::string& why : ignored) {
        warn(cf, cmd, "\"%V\" has a key that is ignored, %s", &words[2], why.c_str());
    }
    const char* crowded = verifier->keys.crowded(identity::Verifier::kMostTries);
    if (crowded != nullptr) {
        warn(cf, cmd,
             "with \"%V\" there are more than %uz keys for %s; a token without a key id is verified with at "
             "most %uz of them",
             &words[2], identity::Verifier::kMostTries, crowded, identity::Verifier::kMostTries);
    }
    explicit_bzero(content.data(), content.size());
    return wrong.empty() ? NGX_CONF_OK : refuse(cf, cmd, "\"%V\" %s", &words[2], wrong.c_str());
}

char* read_jwt_key(ngx_conf_t* cf, ngx_command_t* cmd, ngx_http_rate_limit_srv_conf_t* conf) {
    if (cf->args->nelts < 3) {
        return refuse(cf, cmd, "requires an algorithm and a file: %s", kKeyForm);
    }
    JwtKeyReader reader = {{cf, cmd, 3}};
    if (char* wrong = read_options(&reader, kJwtKeyOptions)) {
        return wrong;
    }
    identity::Verifier* verifier = verifier_of(cf, conf);
    if (verifier == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    main_conf_of(cf)->has_jwt_keys = 1;
    return add_keys(cf, cmd, reader.leeway, verifier);
}

char* read_jwt_source(ngx_conf_t* cf, ngx_command_t* cmd, ngx_http_rate_limit_srv_conf_t* conf) {
    constexpr char kAccepted[] = "a variable that holds the token, such as $cookie_token";
    ngx_str_t* words = words_of(cf);
    if (cf->args->nelts != 2) {
        return cf->args->nelts == 1
                   ? refuse(cf, cmd, "requires %s", kAccepted)
                   : refuse(cf, cmd, "invalid parameter \"%V\", the directive requires only %s", &words[2],
                            kAccepted);
    }
    if (words[1].len == 0 || words[1].data[0] != '$' || !is_variable_name(view(words[1]).substr(1))) {
        return refuse(cf, cmd, "invalid variable \"%V\", it must be %s", &words[1], kAccepted);
    }
    if (conf->token != nullptr) {
        return refuse(cf, cmd, "\"%V\" is duplicate, the directive must be given once here", &words[1]);
    }
    auto* source = pool_new<TokenSource>(cf->pool);
    auto** slot = static_cast<TokenSource**>(ngx_array_push(&main_conf_of(cf)->tokens));
    if (source == nullptr || slot == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    *slot = source;
    conf->token = source;
    source->name = ngx_str(view(words[1]).substr(1));
    source->variable = ngx_http_get_variable_index(cf, &source->name);
    set_position(cf, source);
    return source->variable != NGX_ERROR ? NGX_CONF_OK : static_cast<char*>(NGX_CONF_ERROR);
}

}  // namespace

bool resolve_tokens(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf) {
    for (const TokenSource* source : pointers<TokenSource>(conf.tokens)) {
        if (!is_defined_variable(cf, view(source->name))) {
            return refuse_at(cf, "rate_limit_jwt_source", *source, "unknown variable \"$%V\", %s",
                             &source->name, kVariableAccepted);
        }
    }
    for (ngx_http_variable_t& used : elements<ngx_http_variable_t>(core_main_conf_of(cf)->variables)) {
        if (!conf.has_jwt_keys && view(used.name).substr(0, kClaimPrefix.size()) == kClaimPrefix) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0, "variable \"$%V\" requires \"rate_limit_jwt_key\"",
                          &used.name);
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
}
