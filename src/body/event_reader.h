// Reads numbers out of the events of a text/event-stream that arrives in pieces of any size.
//
// Lines, fields and events are those of the HTML standard, "Server-sent events". The data of an event is one
// JSON document. An event whose data is not JSON, such as [DONE], and an event that the end of the stream
// cuts off have no numbers.
#pragma once

#include "body/json_reader.h"

namespace rate_limit::body {

class EventReader {
  public:
    // Starts a stream. The last number at each path is written to `numbers`. `json` and `numbers` must
    // outlive the reader.
    void begin(const Paths* paths, JsonReader* json, Number* numbers);

    void feed(const char* data, std::size_t size);

  private:
    enum class Place : std::uint8_t {
        kName,     // in the name of a field, or at the start of a line
        kColon,    // after the colon of a data field
        kData,     // in the value of a data field
        kIgnored,  // in the value of another field, or in a comment
    };

    static constexpr std::size_t kMaxHeld = 1024;

    bool is_before_event() const {
        return place_ == Place::kName && name_size_ == 0 && !has_data_ && !after_cr_;
    }
    const char* skip_events(const char* at, const char* end);
    const char* complete_held(const char* at, const char* end);
    const char* find_event_end(const char* at, const char* end) const;
    const char* find_any_member(const char* at, const char* end) const;
    void hold(const char* at, const char* end);
    void read(const char* at, const char* end);
    const char* read_value(const char* at, const char* end);
    void read_name(char c);
    void begin_data();
    void end_line(char c);
    void end_event();

    const Paths* paths_;
    JsonReader* json_;
    Number* numbers_;
    Place place_;
    bool can_skip_;           // each path has a key that can be searched for
    bool has_data_;           // the event has a data field
    bool after_cr_;           // a line feed belongs to the last line's end
    bool is_data_;            // the name is the beginning of "data"
    std::uint8_t name_size_;  // of the field, at most 5
    std::uint8_t mark_size_;  // bytes of the byte order mark that were read; 3 after the start
    std::size_t held_size_;
    char held_[kMaxHeld];  // the start of an event that has no member of a path so far
};

}  // namespace rate_limit::body
