// Parses query strings and Cookie headers without copies.
#include "identity/request_text.h"

#include <algorithm>

namespace rate_limit::identity {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

int hex(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = lower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Takes one character of encoded text from the front of `rest`.
char take(std::string_view* rest) {
    const std::string_view text = *rest;
    if (text[0] == '%' && text.size() >= 3 && hex(text[1]) >= 0 && hex(text[2]) >= 0) {
        rest->remove_prefix(3);
        return static_cast<char>(hex(text[1]) * 16 + hex(text[2]));
    }
    rest->remove_prefix(1);
    return text[0] == '+' ? ' ' : text[0];
}

bool same_encoded(std::string_view encoded, std::string_view name) {
    while (!encoded.empty() && !name.empty()) {
        if (lower(take(&encoded)) != lower(name[0])) {
            return false;
        }
        name.remove_prefix(1);
    }
    return encoded.empty() && name.empty();
}

bool same_letters(std::string_view a, std::string_view b) {
    const auto same = [](char x, char y) { return lower(x) == lower(y); };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

// Takes the text before the next `mark` from the front of `rest`.
std::string_view take_until(char mark, std::string_view* rest) {
    const std::string_view part = rest->substr(0, rest->find(mark));
    rest->remove_prefix(part.size() < rest->size() ? part.size() + 1 : part.size());
    return part;
}

void note(std::string_view value, Found* found) {
    if (found->count++ == 0) {
        found->value = value;
    }
}

bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }

}  // namespace

std::string_view trim(std::string_view text) {
    const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
    while (!text.empty() && is_blank(text.front())) {
        text.remove_prefix(1);
    }
    while (!text.empty() && is_blank(text.back())) {
        text.remove_suffix(1);
    }
    return text;
}

bool same_header(std::string_view a, std::string_view b) {
    const auto same = [](char x, char y) {
        return (x == '_' ? '-' : lower(x)) == (y == '_' ? '-' : lower(y));
    };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

std::string_view query_of(std::string_view target) {
    target = target.substr(0, target.find('#'));
    const std::size_t mark = target.find('?');
    return mark != std::string_view::npos ? target.substr(mark + 1) : std::string_view();
}

Found find_argument(std::string_view query, std::string_view name) {
    Found found;
    while (!query.empty()) {
        std::string_view value = take_until('&', &query);
        if (same_encoded(take_until('=', &value), name)) {
            note(value, &found);
        }
    }
    return found;
}

void find_cookie(std::string_view header, std::string_view name, Found* found) {
    while (!header.empty()) {
        std::string_view value = take_until(';', &header);
        if (same_letters(trim(take_until('=', &value)), name)) {
            note(trim(value), found);
        }
    }
}

std::size_t decode_argument(std::string_view value, char* out) {
    char* at = out;
    while (!value.empty()) {
        *at++ = take(&value);
    }
    return static_cast<std::size_t>(at - out);
}

bool has_control(std::string_view text) { return std::any_of(text.begin(), text.end(), is_control); }

bool needs_escape(std::string_view text) {
    return text.find('%') != std::string_view::npos || has_control(text);
}

std::size_t escape(std::string_view text, char* out) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    char* at = out;
    for (const char c : text) {
        if (!is_control(c) && c != '%') {
            *at++ = c;
            continue;
        }
        *at++ = '%';
        *at++ = kDigits[static_cast<unsigned char>(c) >> 4];
        *at++ = kDigits[c & 15];
    }
    return static_cast<std::size_t>(at - out);
}

}  // namespace rate_limit::identity
