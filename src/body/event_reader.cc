// Splits a stream into the lines and fields of events.
#include "body/event_reader.h"

#include <algorithm>
#include <cstring>

#include "body/scan.h"

namespace rate_limit::body {
namespace {

constexpr std::string_view kDataName = "data";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

const char* find(char c, const char* at, const char* end) {
    const void* found = std::memchr(at, c, static_cast<std::size_t>(end - at));
    return found != nullptr ? static_cast<const char*>(found) : end;
}

// The first carriage return that ends a line without a line feed, as far as has arrived; `end` if there is
// none.
const char* find_lone_return(const char* at, const char* end) {
    for (at = find('\r', at, end); at != end; at = find('\r', at + 1, end)) {
        if (at + 1 == end || at[1] != '\n') {
            return at;
        }
    }
    return end;
}

// Whether a name has one spelling in JSON apart from \u escapes of ASCII.
bool is_searchable(std::string_view name) {
    return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x80 && c != '/';
    });
}

// The end of the last empty line in a text that begins with an event and has no carriage returns without line
// feeds; `at` if there is none.
const char* find_last_event_end(const char* at, const char* end) {
    const char* last = end;
    while (last != at) {
        const void* found = memrchr(at, '\n', static_cast<std::size_t>(last - at));
        if (found == nullptr) {
            return at;
        }
        last = static_cast<const char*>(found);
        const char* before = last;
        if (before != at && before[-1] == '\r') {
            before--;
        }
        if (before == at || before[-1] == '\n') {
            return last + 1;
        }
    }
    return at;
}

}  // namespace

void EventReader::begin(const Paths* paths, JsonReader* json, Number* numbers) {
    paths_ = paths;
    json_ = json;
    numbers_ = numbers;
    place_ = Place::kName;
    can_skip_ = std::all_of(paths->paths, paths->paths + paths->size,
                            [](const Path& path) { return is_searchable(path.key); });
    held_size_ = 0;
    has_data_ = false;
    after_cr_ = false;
    is_data_ = true;
    name_size_ = 0;
    mark_size_ = 0;
}

// The first place that may be a member of a path, or needs a look for another reason; `end` if there is none.
const char* EventReader::find_any_member(const char* at, const char* end) const {
    const char* first = find_lone_return(at, end);
    for (std::size_t i = 0; i < paths_->size; i++) {
        first = std::min(first, find_member(at, end, paths_->paths[i].key));
    }
    return first;
}

// Skips whole events that have no member of a path. Most events of a stream are such, and need no parser.
// Holds the start of the next event, if the rest has not arrived.
const char* EventReader::skip_events(const char* at, const char* end) {
    const char* const member = find_any_member(at, end);
    const char* const next = find_last_event_end(at, member);
    if (next != at) {
        mark_size_ = kByteOrderMark.size();
    }
    if (member != end || static_cast<std::size_t>(end - next) > sizeof(held_)) {
        return next;
    }
    hold(next, end);
    return end;
}

void EventReader::hold(const char* at, const char* end) {
    std::memcpy(held_ + held_size_, at, static_cast<std::size_t>(end - at));
    held_size_ += static_cast<std::size_t>(end - at);
}

// The end of the first empty line of a text that continues the held one; null if there is none.
const char* EventReader::find_event_end(const char* at, const char* end) const {
    const auto before = [&](const char* line_end, std::ptrdiff_t distance) {
        const std::ptrdiff_t index = line_end - at - distance;
        const std::ptrdiff_t held = static_cast<std::ptrdiff_t>(held_size_) + index;
        return index >= 0 ? at[index] : held >= 0 ? held_[held] : '\n';
    };
    for (const char* line_end = find('\n', at, end); line_end != end;
         line_end = find('\n', line_end + 1, end)) {
        const char last = before(line_end, 1);
        if (last == '\n' || (last == '\r' && before(line_end, 2) == '\n')) {
            return line_end + 1;
        }
    }
    return nullptr;
}

// Completes the event whose start is held. Reads the event if it has a member of a path or is too long to
// hold; otherwise skips it. Returns the end of what was used.
const char* EventReader::complete_held(const char* at, const char* end) {
    const char* const event_end = find_event_end(at, end);
    const char* const used = event_end != nullptr ? event_end : end;
    const std::size_t before = held_size_;
    const bool fits = static_cast<std::size_t>(used - at) <= sizeof(held_) - held_size_;
    if (fits) {
        hold(at, used);
        // A member may have begun in the part that was searched before.
        const char* const from = held_ + before - std::min(before, kMaxStep + 2);
        const char* const held_end = held_ + held_size_;
        if (find_any_member(from, held_end) == held_end) {
            held_size_ = event_end != nullptr ? 0 : held_size_;
            mark_size_ = event_end != nullptr ? kByteOrderMark.size() : mark_size_;
            return used;
        }
    }
    const std::size_t size = held_size_;
    held_size_ = 0;
    read(held_, held_ + size);
    return fits ? used : at;
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

// Reads without skipping events.
void EventReader::read(const char* at, const char* end) {
    while (at != end) {
        if (place_ == Place::kName) {
            read_name(*at++);
        } else {
            at = read_value(at, end);
        }
    }
}

void EventReader::feed(const char* data, std::size_t size) {
    const char* const end = data + size;
    while (data != end) {
        if (held_size_ != 0) {
            data = complete_held(data, end);
        } else if (place_ != Place::kName) {
            data = read_value(data, end);
        } else if (can_skip_ && is_before_event()) {
            data = skip_events(data, end);
            if (data != end) {
                read_name(*data++);
            }
        } else {
            read_name(*data++);
        }
    }
}

}  // namespace rate_limit::body
