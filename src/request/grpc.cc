// Sends a gRPC status as a trailers-only response: what gRPC has in trailers is in the headers, and the
// headers end the response.
#include "request/grpc.h"

#include "identity/request_text.h"
#include "protocol/grpc.h"
#include "request/headers.h"

namespace rate_limit {
namespace {

constexpr std::string_view kStatus = "grpc-status";
constexpr std::string_view kMessage = "grpc-message";
constexpr std::string_view kDetails = "grpc-status-details-bin";

// Prints why a request was rejected. Without data if memory is exhausted.
ngx_str_t print_message(ngx_http_request_t* r, const Limit* shown) {
    const std::size_t size = kLongestReason + (shown != nullptr ? zone_of(*shown).name.len : 0);
    auto* text = static_cast<u_char*>(ngx_pnalloc(r->pool, size));
    if (text == nullptr) {
        return {};
    }
    u_char* const end = text + size;
    u_char* at = text;
    if (shown == nullptr) {
        at = ngx_slprintf(at, end, "Quota exceeded.");
    } else if (shown->decision.retry_after == kNever) {
        at = print_never_reason(at, end, *shown);
    } else {
        at = ngx_slprintf(at, end, "Quota of policy ");
        at = print_policy_name(at, end, *shown, shown->decision.rate);
        at = ngx_slprintf(at, end, " exceeded.");
    }
    return {static_cast<std::size_t>(at - text), text};
}

bool add_status(ngx_http_request_t* r, ngx_uint_t code, std::string_view message) {
    auto* number_end = static_cast<u_char*>(ngx_pnalloc(r->pool, kLongestNumber + 3 * message.size()));
    if (number_end == nullptr) {
        return false;
    }
    number_end += kLongestNumber;
    const u_char* number = print_number(code, number_end);
    auto* escaped = reinterpret_cast<char*>(number_end);
    const std::size_t size = identity::escape(message, escaped);
    return add_header(r, kStatus,
                      {reinterpret_cast<const char*>(number),
                       static_cast<std::size_t>(number_end - number)}) != nullptr &&
           add_header(r, kMessage, {escaped, size}) != nullptr;
}

// Adds a google.rpc.Status with the wait in base64, without padding.
bool add_details(ngx_http_request_t* r, ngx_uint_t code, std::string_view message, Micros wait) {
    const std::size_t room = kLongestRetryStatus + message.size();
    auto* bytes = static_cast<u_char*>(ngx_pnalloc(r->pool, room + ngx_base64_encoded_length(room)));
    if (bytes == nullptr) {
        return false;
    }
    const char* end =
        write_retry_status(static_cast<unsigned>(code), message, wait, reinterpret_cast<char*>(bytes));
    ngx_str_t status = {static_cast<std::size_t>(end - reinterpret_cast<const char*>(bytes)), bytes};
    ngx_str_t text = {0, bytes + room};
    ngx_encode_base64(&text, &status);
    const std::string_view padded = view(text);
    return add_header(r, kDetails, padded.substr(0, padded.find('='))) != nullptr;
}

// Sends the headers as the whole response. Returns the code for ngx_http_finalize_request.
ngx_int_t send_headers(ngx_http_request_t* r, std::string_view type) {
    // A client with "Expect: 100-continue" must not send its body.
    r->expect_tested = 1;
    if (ngx_http_discard_request_body(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    // In a location that error_page has redirected to, nginx would send the status of the first error.
    r->err_status = NGX_HTTP_OK;
    // The response has no Last-Modified, so conditional headers of the request must not apply.
    r->disable_not_modified = 1;
    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_type = ngx_str(type);
    r->headers_out.content_type_len = type.size();
    r->headers_out.content_type_lowcase = nullptr;
    if (r->http_version < NGX_HTTP_VERSION_20) {
        // The response ends by its length.
        r->headers_out.content_length_n = 0;
        const ngx_int_t rc = ngx_http_send_header(r);
        return rc == NGX_ERROR || rc > NGX_OK || r->header_only ? rc
                                                                : ngx_http_send_special(r, NGX_HTTP_LAST);
    }
    // The frame of the headers ends the stream. A gRPC client would show Content-Length as metadata.
    ngx_http_clear_content_length(r);
    r->header_only = 1;
    return ngx_http_send_header(r);
}

}  // namespace

std::string_view grpc_type(ngx_http_request_t* r) {
    const ngx_table_elt_t* header = r->headers_in.content_type;
    return header == nullptr || location_conf(r)->grpc_status == NGX_HTTP_RATE_LIMIT_GRPC_OFF
               ? std::string_view()
               : grpc_media_type(view(header->value));
}

ngx_int_t send_grpc_rejection(ngx_http_request_t* r, const RequestState& state, std::string_view type) {
    const ngx_uint_t code = location_conf(r)->grpc_status;
    const Micros wait = shown_wait(state);
    const ngx_str_t message = print_message(r, shown_rejection(state));
    if (message.data == nullptr || !add_status(r, code, view(message)) ||
        (wait != kNever && !add_details(r, code, view(message), wait))) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    return send_headers(r, type);
}

ngx_int_t send_grpc_unavailable(ngx_http_request_t* r, std::string_view type) {
    return add_status(r, kGrpcUnavailable, "Rate limits are unavailable.") ? send_headers(r, type)
                                                                           : NGX_HTTP_INTERNAL_SERVER_ERROR;
}

}  // namespace rate_limit
