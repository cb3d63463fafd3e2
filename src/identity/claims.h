// The claims of a token that was verified.
#pragma once

#include <jansson.h>

#include <cstddef>
#include <string_view>
#include <utility>

namespace rate_limit::identity {

// A share in a JSON value; the value lives as long as someone has one. For one thread.
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

// An object without a name that stands twice; empty if the text is anything else.
Json parse_object(const unsigned char* text, std::size_t size);

constexpr std::size_t kLongestNumber = 32;

// A claim as text: a string as it is, a number or a boolean as JSON writes it; empty for anything else and
// where there is none. A dot in `path` leads into an object, unless a claim has the dot in its name. The text
// lives as long as the claims, or as `number`.
std::string_view claim_text(const Json& claims, std::string_view path, char (&number)[kLongestNumber]);

// The same for a claim that is not inside another, by a name whose letters have lost their case, as those of
// variables have. Of several that differ only in case the one in small letters is meant, or else none.
std::string_view variable_text(const Json& claims, std::string_view name, char (&number)[kLongestNumber]);

}  // namespace rate_limit::identity
