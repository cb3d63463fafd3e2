// Chooses the reader of a body.
#include "body/body_reader.h"

#include <algorithm>

namespace rate_limit::body {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

bool same(std::string_view a, std::string_view b) {
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trim(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t");
    const std::size_t last = text.find_last_not_of(" \t");
    return first == std::string_view::npos ? std::string_view() : text.substr(first, last - first + 1);
}

}  // namespace

Format format_of(std::string_view content_type) {
    constexpr std::string_view kApplication = "application/";
    constexpr std::string_view kSuffix = "+json";
    const std::string_view type = trim(content_type.substr(0, content_type.find(';')));
    if (same(type, "text/event-stream")) {
        return Format::kEvents;
    }
    const bool has_suffix = type.size() > kApplication.size() + kSuffix.size() &&
                            same(type.substr(0, kApplication.size()), kApplication) &&
                            same(type.substr(type.size() - kSuffix.size()), kSuffix);
    return has_suffix || same(type, "application/json") ? Format::kJson : Format::kOther;
}

bool is_encoded(std::string_view content_encoding) {
    const std::string_view encoding = trim(content_encoding);
    return !encoding.empty() && !same(encoding, "identity");
}

void BodyReader::begin(const Paths* paths, Format format) {
    paths_ = paths;
    format_ = format;
    is_empty_ = true;
    for (Number& number : numbers_) {
        number.size = 0;
    }
    json_.begin(paths);
    events_.begin(paths, &json_, numbers_);
}

void BodyReader::feed(const char* data, std::size_t size) {
    is_empty_ = is_empty_ && size == 0;
    if (format_ == Format::kEvents) {
        events_.feed(data, size);
    } else {
        json_.feed(data, size);
    }
}

Syntax BodyReader::finish() {
    if (format_ == Format::kEvents) {
        return Syntax::kGood;
    }
    const Syntax syntax = json_.finish();
    for (std::size_t i = 0; syntax == Syntax::kGood && i < paths_->size; i++) {
        numbers_[i] = json_.number(i);
    }
    return syntax;
}

}  // namespace rate_limit::body
