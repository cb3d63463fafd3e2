// Arguments and cookies of a request.
#pragma once

#include <cstddef>
#include <string_view>

namespace rate_limit::identity {

// The result of a search. A duplicate value identifies no client: nginx and an application may disagree which
// one counts.
struct Found {
    std::size_t count = 0;
    std::string_view value = {};  // the first one, not decoded

    // The value, if there is exactly one.
    std::string_view only() const { return count == 1 ? value : std::string_view(); }
};

// Searches an argument by name in a query string. Names are percent-decoded and compared without case.
Found find_argument(std::string_view query, std::string_view name);

// Searches a cookie in the value of a Cookie header, without case, and adds to the result of other headers.
void find_cookie(std::string_view header, std::string_view name, Found* found);

// The text without blanks and tabs at both ends, where they have no meaning in HTTP.
std::string_view trim(std::string_view text);

// Whether two names of headers are the same for nginx's variables and for CGI: compared without case, and
// with "-" equal to "_".
bool same_header(std::string_view a, std::string_view b);

// The query string in the target of a request line.
std::string_view query_of(std::string_view target);

// Writes the decoded value of an argument to `out`, which has room for the size of `value`; returns its size.
std::size_t decode_argument(std::string_view value, char* out);

// Escapes `text` for a header or a log line: control characters and % become % and two hexadecimal digits.
// `out` has room for three times the size of `text`; returns the size of the result.
std::size_t escape(std::string_view text, char* out);

// Whether escape() would change the text, and whether the text has control characters.
bool needs_escape(std::string_view text);
bool has_control(std::string_view text);

}  // namespace rate_limit::identity
