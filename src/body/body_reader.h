// Reads numbers out of the body of a request or a response, in bounded memory, while the body arrives.
#pragma once

#include "body/event_reader.h"

namespace rate_limit::body {

enum class Format : std::uint8_t { kOther, kJson, kEvents };

// The format of a body, by its Content-Type.
Format format_of(std::string_view content_type);

// Whether a body with this Content-Encoding is compressed or otherwise encoded.
bool is_encoded(std::string_view content_encoding);

// All memory that reading a body takes. Not initialized before begin().
class BodyReader {
  public:
    // Starts a body that is JSON or a stream of events. `paths` must outlive the reader.
    void begin(const Paths* paths, Format format);

    void feed(const char* data, std::size_t size);

    // Ends the body.
    Syntax finish();

    // The last number at the path with this index; empty if there is none. A JSON document has numbers only
    // after finish(), if the whole document is well-formed. A stream of events has numbers after each event.
    std::string_view number(std::size_t path) const { return {numbers_[path].text, numbers_[path].size}; }

    bool is_empty() const { return is_empty_; }  // no byte has arrived

  private:
    const Paths* paths_;
    Format format_;
    bool is_empty_;
    Number numbers_[kMaxPaths];
    EventReader events_;
    JsonReader json_;
};

}  // namespace rate_limit::body
