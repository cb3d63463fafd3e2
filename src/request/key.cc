// The value of a rate_limit_key: the value of the first source that has one, after the name of the source.
#include "request/key.h"

#include "identity/request_text.h"
#include "request/headers.h"
#include "request/jwt.h"

namespace rate_limit {
namespace {

std::string_view header_of(const ngx_http_request_t& r, const ngx_str_t& name) {
    identity::Found found;
    for (const ngx_table_elt_t& header : request_headers(r)) {
        if (identity::same_header(view(header.key), view(name))) {
            found.value = view(header.value);
            found.count++;
        }
    }
    return identity::trim(found.only());
}

std::string_view cookie_of(const ngx_http_request_t& r, const ngx_str_t& name) {
    identity::Found found;
    for (const ngx_table_elt_t& header : request_headers(r)) {
        if (identity::same_header(view(header.key), "cookie")) {
            identity::find_cookie(view(header.value), view(name), &found);
        }
    }
    return found.only();
}

std::string_view argument_of(ngx_http_request_t* r, const ngx_str_t& name) {
    const std::string_view query = identity::query_of(view(r->main->unparsed_uri));
    const std::string_view encoded = identity::find_argument(query, view(name)).only();
    auto* text = encoded.empty() ? nullptr : static_cast<char*>(ngx_pnalloc(r->pool, encoded.size()));
    return text == nullptr ? std::string_view()
                           : std::string_view(text, identity::decode_argument(encoded, text));
}

ngx_int_t set_value(ngx_http_request_t* r, std::string_view label, std::string_view text,
                    ngx_http_variable_value_t* value) {
    const std::size_t room = identity::needs_escape(text) ? 3 * text.size() : text.size();
    auto* data = static_cast<char*>(ngx_pnalloc(r->pool, label.size() + room));
    if (data == nullptr) {
        return NGX_ERROR;
    }
    const std::size_t size = label.copy(data, label.size());
    value->len = static_cast<unsigned>(size + identity::escape(text, data + size));
    value->data = reinterpret_cast<u_char*>(data);
    value->valid = 1;
    value->no_cacheable = 0;
    value->not_found = 0;
    return NGX_OK;
}

// Sets the client's address, which the realip module may have replaced.
ngx_int_t set_address(ngx_http_request_t* r, const KeySource& source, ngx_http_variable_value_t* value) {
    const sockaddr* address = r->connection->sockaddr;
    char name[identity::kLongestAddress];
    if (address->sa_family == AF_INET) {
        const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
        const auto* bytes = reinterpret_cast<const unsigned char*>(&v4->sin_addr);
        return set_value(r, {name, print_address(bytes, 4, source.prefixes, name)}, {}, value);
    }
#if (NGX_HAVE_INET6)
    if (address->sa_family == AF_INET6) {
        const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
        return set_value(r, {name, print_address(v6->sin6_addr.s6_addr, 16, source.prefixes, name)}, {},
                         value);
    }
#endif
    return set_value(r, "ip:", view(r->connection->addr_text), value);
}

std::string_view text_of(ngx_http_request_t* r, const KeySource& source,
                         char (&number)[identity::kLongestNumber]) {
    switch (source.kind) {
        case KeySource::Kind::kHeader:
            return header_of(*r, source.name);
        case KeySource::Kind::kCookie:
            return cookie_of(*r, source.name);
        case KeySource::Kind::kArgument:
            return argument_of(r, source.name);
        case KeySource::Kind::kClaim:
            return request_claim(r, view(source.name), number);
        default:
            return variable_value(r, source.variable);
    }
}

}  // namespace

ngx_int_t get_client_key(ngx_http_request_t* r, ngx_http_variable_value_t* value, uintptr_t data) {
    const auto& client = *reinterpret_cast<const ClientKey*>(data);
    for (const KeySource& source : elements<const KeySource>(client.sources)) {
        if (source.kind == KeySource::Kind::kAddress) {
            return set_address(r, source, value);
        }
        char number[identity::kLongestNumber];
        const std::string_view text = text_of(r, source, number);
        if (!text.empty()) {
            return set_value(r, view(source.label), text, value);
        }
    }
    value->not_found = 1;
    return NGX_OK;
}

}  // namespace rate_limit
