// The claims of a token that was verified.
#pragma once

#include <jansson.h>

#include <cstddef>
#include <string_view>
#include <utility>

namespace rate_limit::identity {

// A counted reference to a JSON value. For one thread.
class Json {
  public:
    Json() = default;
    // Takes over the caller's reference.
    explicit Json(json_t* value) : value_(value) {}
    Json(const Json& other) : value_(json_incref(other.value_)) {}
    Json(Json&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
    Json& operator=(Json other) noexcept {
        std::swap(value_, other.value_);
        return *this;
    }
    ~Json() { json_decref(value_); }

    json_t* get() const { return value_; }
    explicit operator bool() const { return value_ != nullptr; }

  private:
    json_t* value_ = nullptr;
};

// Parses an object without duplicate names; empty if the text is anything else.
Json parse_object(const unsigned char* text, std::size_t size);

constexpr std::size_t kLongestNumber = 32;

// A claim as text: a string unchanged, a number or boolean as in JSON; empty for anything else and if there
// is no such claim. A dot in `path` selects a member of an object, unless a claim has the dot in its name.
// The text lives as long as both the claims and `number`.
std::string_view claim_text(const Json& claims, std::string_view path, char (&number)[kLongestNumber]);

// The same for a claim of the top level by a lower-case name, as nginx's variables have. If several claims
// differ only in case, the lower-case one is used, else none.
std::string_view variable_text(const Json& claims, std::string_view name, char (&number)[kLongestNumber]);

}  // namespace rate_limit::identity
