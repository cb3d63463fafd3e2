// Finds claims and turns them into text.
#include "identity/claims.h"

#include <strings.h>

#include <charconv>
#include <cstring>

namespace rate_limit::identity {
namespace {

// Descends from object to object, each time by the longest name that matches.
const json_t* find_claim(const json_t* object, std::string_view path) {
    std::size_t size = path.size();
    while (size != std::string_view::npos) {
        const json_t* member = json_object_getn(object, path.data(), size);
        if (size == path.size() && member != nullptr) {
            return member;
        }
        if (size != path.size() && json_is_object(member)) {
            object = member;
            path.remove_prefix(size + 1);
            size = path.size();
            continue;
        }
        size = size == 0 ? std::string_view::npos : path.rfind('.', size - 1);
    }
    return nullptr;
}

template <class Number>
std::string_view print(Number value, char (&number)[kLongestNumber]) {
    const auto printed = std::to_chars(number, number + kLongestNumber, value);
    return {number, static_cast<std::size_t>(printed.ptr - number)};
}

std::string_view text_of(const json_t* claim, char (&number)[kLongestNumber]) {
    if (claim == nullptr) {
        return {};
    }
    switch (json_typeof(claim)) {
        case JSON_STRING:
            return {json_string_value(claim), json_string_length(claim)};
        case JSON_INTEGER:
            return print(json_integer_value(claim), number);
        case JSON_REAL:
            return print(json_real_value(claim), number);
        case JSON_TRUE:
            return "true";
        case JSON_FALSE:
            return "false";
        default:
            return {};
    }
}

}  // namespace

Json parse_object(const unsigned char* text, std::size_t size) {
    // jansson ignores a null byte after a number.
    if (size == 0 || std::memchr(text, 0, size) != nullptr) {
        return {};
    }
    json_error_t error;
    Json json(json_loadb(reinterpret_cast<const char*>(text), size, JSON_REJECT_DUPLICATES, &error));
    return json_is_object(json.get()) ? json : Json();
}

std::string_view claim_text(const Json& claims, std::string_view path, char (&number)[kLongestNumber]) {
    return text_of(find_claim(claims.get(), path), number);
}

std::string_view variable_text(const Json& claims, std::string_view name, char (&number)[kLongestNumber]) {
    const json_t* found = json_object_getn(claims.get(), name.data(), name.size());
    std::size_t count = found != nullptr ? 1 : 0;
    const char* member = nullptr;
    json_t* value = nullptr;
    if (found == nullptr) {
        json_object_foreach(claims.get(), member, value) {
            if (std::strlen(member) == name.size() && strncasecmp(member, name.data(), name.size()) == 0) {
                found = value;
                count++;
            }
        }
    }
    return count == 1 ? text_of(found, number) : std::string_view();
}

}  // namespace rate_limit::identity
