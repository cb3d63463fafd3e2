// Splits a stream into the lines and fields of events.
#include "body/event_reader.h"

#include <algorithm>
#include <cstring>

#include "body/scan.h"

namespace rate_limit::body {
namespace {

constexpr std::string_view kDataName = "data";
constexpr std::string_view kDataField = "data:";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

const char* find(char c, const char* at, const char* end) {
    const void* found = std::memchr(at, c, static_cast<std::size_t>(end - at));
    return found != nullptr ? static_cast<const char*>(found) : end;
}

// The end of an event that consists of one data line and an empty line, whose line feeds are at `line_end`
// and after; null if the empty line has not arrived or is not empty.
const char* find_event_end(const char* line_end, const char* end) {
    const char* at = line_end != end ? line_end + 1 : end;
    if (at != end && *at == '\r') {
        at++;
    }
    return at != end && *at == '\n' ? at + 1 : nullptr;
}

}  // namespace

void EventReader::begin(const Paths* paths, JsonReader* json, Number* numbers) {
    paths_ = paths;
    json_ = json;
    numbers_ = numbers;
    place_ = Place::kName;
    can_skip_ = std::none_of(paths->paths, paths->paths + paths->size,
                             [](const Path& path) { return path.key.empty(); });
    has_data_ = false;
    after_cr_ = false;
    is_data_ = true;
    name_size_ = 0;
    mark_size_ = 0;
}

// Skips whole events that have no member of a path. Most events of a stream are such, and need no parser.
const char* EventReader::skip_events(const char* at, const char* end) {
    while (static_cast<std::size_t>(end - at) > kDataField.size() &&
           std::memcmp(at, kDataField.data(), kDataField.size()) == 0) {
        const char* const line_end = find('\n', at, end);
        const char* const next = find_event_end(line_end, end);
        if (next == nullptr) {
            return at;
        }
        const char* const text_end = line_end[-1] == '\r' ? line_end - 1 : line_end;
        for (std::size_t i = 0; i < paths_->size; i++) {
            if (may_have_member(at, text_end, paths_->paths[i].key)) {
                return at;
            }
        }
        at = next;
        after_cr_ = false;
        mark_size_ = kByteOrderMark.size();
    }
    return at;
}

void EventReader::begin_data() {
    if (has_data_) {
        json_->feed("\n", 1);
    } else {
        json_->begin(paths_);
        has_data_ = true;
    }
}

void EventReader::end_event() {
    if (has_data_ && json_->finish() == Syntax::kGood) {
        for (std::size_t i = 0; i < paths_->size; i++) {
            if (json_->number(i).size != 0) {
                numbers_[i] = json_->number(i);
            }
        }
    }
    has_data_ = false;
}

void EventReader::end_line(char c) {
    place_ = Place::kName;
    after_cr_ = c == '\r';
    is_data_ = true;
    name_size_ = 0;
}

void EventReader::read_name(char c) {
    const bool joins_cr = after_cr_ && c == '\n';
    after_cr_ = false;
    if (joins_cr) {
        return;
    }
    if (mark_size_ < kByteOrderMark.size() && c == kByteOrderMark[mark_size_]) {
        mark_size_++;
        return;
    }
    mark_size_ = kByteOrderMark.size();
    const bool is_data = is_data_ && name_size_ == kDataName.size();
    if (c == '\r' || c == '\n') {
        if (name_size_ == 0) {
            end_event();
        } else if (is_data) {
            begin_data();
        }
        end_line(c);
    } else if (c == ':') {
        place_ = is_data ? Place::kColon : Place::kIgnored;
    } else {
        is_data_ = is_data_ && name_size_ < kDataName.size() && c == kDataName[name_size_];
        name_size_ += name_size_ <= kDataName.size() ? 1 : 0;
    }
}

// Reads the rest of a value, or as much as has arrived. Returns the end of what was read.
const char* EventReader::read_value(const char* at, const char* end) {
    if (place_ == Place::kColon) {
        begin_data();
        place_ = Place::kData;
        at += *at == ' ' ? 1 : 0;
    }
    const char* const line_end = find('\r', at, find('\n', at, end));
    if (place_ == Place::kData) {
        json_->feed(at, static_cast<std::size_t>(line_end - at));
    }
    if (line_end == end) {
        return end;
    }
    end_line(*line_end);
    return line_end + 1;
}

void EventReader::feed(const char* data, std::size_t size) {
    const char* const end = data + size;
    while (data != end) {
        if (place_ != Place::kName) {
            data = read_value(data, end);
            continue;
        }
        if (can_skip_ && !has_data_ && name_size_ == 0) {
            data = skip_events(data, end);
        }
        if (data != end) {
            read_name(*data++);
        }
    }
}

}  // namespace rate_limit::body
