// What a client says of itself: an argument of a URI or a cookie.
#pragma once

#include <cstddef>
#include <string_view>

namespace rate_limit::identity {

// A value that was looked for. One that stands more than once names nobody: which of them counts, nginx and
// an application may see differently.
struct Found {
    std::size_t count = 0;
    std::string_view value = {};  // the first, as it stands

    // The value, if there is exactly one.
    std::string_view only() const { return count == 1 ? value : std::string_view(); }
};

// Looks for an argument by name in a query string. Names are compared as an application would read them:
// percent-decoded, and whatever the case of their letters.
Found find_argument(std::string_view query, std::string_view name);

// Looks for a cookie in the value of a Cookie header and adds to what other headers had; the case of letters
// does not matter.
void find_cookie(std::string_view header, std::string_view name, Found* found);

// Without the blanks and tabs around it, which HTTP gives no meaning.
std::string_view trim(std::string_view text);

// Whether two names of headers are one, for nginx's variables and for applications that see them as those of
// CGI: whatever the case of their letters, and with "-" and "_" the same.
bool same_header(std::string_view a, std::string_view b);

// The arguments in the target of a request line.
std::string_view query_of(std::string_view target);

// Writes an argument's value as an application would read it into `out`, which has room for all of `value`;
// returns its size.
std::size_t decode_argument(std::string_view value, char* out);

// Writes `text` so that it can stand in a header or a line of a log: control characters, and %, as % and two
// hexadecimal digits. `out` has room for three times its size; returns how much of that is used.
std::size_t escape(std::string_view text, char* out);

// Whether escape() would do more than copy, and whether it would because of a control character.
bool needs_escape(std::string_view text);
bool has_control(std::string_view text);

}  // namespace rate_limit::identity
