// The token of a request: finds and verifies it, and evaluates the variables of its claims.
#include "request/jwt.h"

#include "identity/request_text.h"
#include "identity/verifier.h"
#include "request/request.h"

namespace rate_limit {
namespace {

// The token after the word Bearer in the header Authorization; empty if there is none.
std::string_view bearer_token(ngx_http_request_t* r) {
    constexpr std::string_view kScheme = "Bearer";
    if (r->headers_in.authorization == nullptr) {
        return {};
    }
    const std::string_view text = identity::trim(view(r->headers_in.authorization->value));
    const std::size_t blank = text.find_first_of(" \t");
    return blank != std::string_view::npos && same_letters(text.substr(0, blank), kScheme)
               ? identity::trim(text.substr(blank))
               : std::string_view();
}

std::string_view token_of(ngx_http_request_t* r, const ngx_http_rate_limit_srv_conf_t& conf) {
    const auto* source = static_cast<const TokenSource*>(conf.token);
    return source == nullptr ? bearer_token(r) : identity::trim(variable_value(r, source->variable));
}

identity::Json read_claims(ngx_http_request_t* r) {
    const auto* conf = static_cast<ngx_http_rate_limit_srv_conf_t*>(
        ngx_http_get_module_srv_conf(r, ngx_http_rate_limit_module));
    auto* verifier = static_cast<identity::Verifier*>(conf->verifier);
    if (verifier == nullptr) {
        return {};
    }
    const std::string_view token = token_of(r, *conf);
    if (token.empty()) {
        return {};
    }
    identity::Verifier::Result result = verifier->verify(token, static_cast<double>(ngx_time()));
    if (result.verdict != identity::TokenVerdict::kValid) {
        ngx_log_error(NGX_LOG_INFO, r->connection->log, 0, "token is not valid and has no claims: %s",
                      identity::verdict_text(result.verdict));
    }
    return std::move(result.claims);
}

// The claims of a request, which live as long as the request; null if its token is not valid.
identity::Json request_claims(ngx_http_request_t* r) {
    RequestState* state = make_request_state(r, 0);
    if (state == nullptr) {
        return {};
    }
    if (!state->token_read) {
        state->token_read = true;
        state->claims = read_claims(r);
    }
    return state->claims;
}

ngx_int_t get_claim(ngx_http_request_t* r, ngx_http_variable_value_t* value, uintptr_t data) {
    const std::string_view name = view(*reinterpret_cast<ngx_str_t*>(data)).substr(kClaimPrefix.size());
    char number[identity::kLongestNumber];
    std::string_view text = identity::variable_text(request_claims(r), name, number);
    // A line end in the value could forge a header.
    const bool usable = !text.empty() && !identity::has_control(text);
    value->not_found = usable ? 0 : 1;
    if (!usable) {
        return NGX_OK;
    }
    if (text.data() == number) {
        auto* copy = static_cast<char*>(ngx_pnalloc(r->pool, text.size()));
        if (copy == nullptr) {
            return NGX_ERROR;
        }
        text = {copy, text.copy(copy, text.size())};
    }
    value->data = ngx_str(text).data;
    value->len = static_cast<unsigned>(text.size());
    value->valid = 1;
    value->no_cacheable = 0;
    return NGX_OK;
}

}  // namespace

std::string_view request_claim(ngx_http_request_t* r, std::string_view path,
                               char (&number)[identity::kLongestNumber]) {
    return identity::claim_text(request_claims(r), path, number);
}

bool add_claim_variables(ngx_conf_t* cf) {
    ngx_str_t name = ngx_str(kClaimPrefix);
    ngx_http_variable_t* variable = ngx_http_add_variable(cf, &name, NGX_HTTP_VAR_PREFIX);
    if (variable == nullptr) {
        return false;
    }
    variable->get_handler = get_claim;
    return true;
}

}  // namespace rate_limit
