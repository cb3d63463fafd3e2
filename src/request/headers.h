// Headers of requests and responses, their numbers as text, and the header filter.
#pragma once

#include "nginx/collections.h"

namespace rate_limit {

inline ListRange<ngx_table_elt_t> request_headers(const ngx_http_request_t& r) {
    return elements<ngx_table_elt_t>(r.headers_in.headers);
}

// Prints a number so that its text ends at `end`, before which there must be room for kLongestNumber bytes.
// Returns where the text begins.
constexpr std::size_t kLongestNumber = NGX_INT64_LEN;
u_char* print_number(uint64_t number, u_char* end);

// Adds a header to the response. The texts must live as long as the request. Null if memory is exhausted.
ngx_table_elt_t* add_header(ngx_http_request_t* r, std::string_view name, std::string_view value);

// Installs the filter in front of the other header filters.
void add_header_filter();

}  // namespace rate_limit
