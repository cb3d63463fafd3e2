// Reads numbers out of a JSON document that arrives in pieces of any size.
//
// yajl parses the arrays and objects that a path leads into. Values beside a path are skipped, since this is
// many times faster: of these, only brackets are checked. yajl's memory is bounded, and part of
// the reader: strings that are longer than any name of a path are validated here and passed to yajl as "",
// which is the same token for its grammar, and numbers and depth are limited. UTF-8 is not validated.
#pragma once

#include "body/path.h"

struct yajl_handle_t;

namespace rate_limit::body {

constexpr std::size_t kMaxNumber = 32;      // bytes of a number that is read
constexpr std::size_t kMaxAnyNumber = 256;  // bytes of any number in a document
constexpr std::size_t kMaxDepth = 256;      // of arrays and objects

// A number as it is written in the document.
struct Number {
    char text[kMaxNumber];
    std::uint8_t size;  // 0: not found
};

enum class Syntax : std::uint8_t {
    kGood,       // so far
    kMalformed,  // not JSON
    kTooLarge,   // a number is too long, or the nesting too deep
};

class JsonReader {
  public:
    // Starts a document. `paths` must outlive the reader.
    void begin(const Paths* paths);

    // Reads the next part of the document. Once the syntax is not kGood, ignores it.
    void feed(const char* data, std::size_t size);

    // Ends the document. The numbers count only if the result is kGood.
    Syntax finish();

    // The last number of the document at the path with this index.
    const Number& number(std::size_t path) const { return numbers_[path]; }

    // The memory that yajl has used for this document, in bytes.
    std::size_t used() const { return used_; }

  private:
    friend struct Callbacks;

    // The place of the next byte.
    enum class Place : std::uint8_t {
        kParsed,         // not below
        kHeldString,     // in a string that may be a name of a path, and whose end has not arrived
        kSkippedString,  // in a string of any length
        kSkippedValue,   // in an array or object beside all paths
    };

    // The place in a skipped value.
    struct Skipped {
        std::uint64_t in_string;  // all bits are set in a string, else none
        bool is_escaped;          // a backslash escapes the next byte
        bool is_plain;            // the last block had no marks
    };

    static constexpr std::size_t kMaxHeld = 6 * kMaxStep + 2;  // a name in \u escapes, with quotes
    static constexpr std::size_t kMemory = 8192;

    const char* read_run(const char* at, const char* end);
    const char* read_string(const char* at, const char* end);
    const char* skip_value(const char* at, const char* end);
    std::size_t skip_block(const char* block, std::size_t size, Skipped* state);
    bool skip_bracket(char c);
    const char* find_quote(const char* at, const char* end);
    bool read_escaped(char c);
    void hold(const char* at, const char* end);
    void parse(std::string_view text);
    bool has_short_tokens(std::string_view text);
    void fail(Syntax syntax) { syntax_ = syntax; }
    void* allocate(std::size_t size);
    unsigned matches();
    bool open(bool is_object);
    bool is_beside_paths() const { return depth_ > kMaxSteps || levels_[depth_] == 0; }

    yajl_handle_t* parser_;
    const Paths* paths_;
    Syntax syntax_;
    Place place_;
    std::uint8_t escape_;  // 0: in plain text, 1: after a backslash, N: before N - 1 hexadecimal digits
    Skipped skipped_;
    std::uint32_t depth_;
    std::uint32_t skipped_depth_;                    // of arrays and objects in the skipped value
    std::uint64_t skipped_objects_[kMaxDepth / 64];  // by skipped depth: a bit, set for an object
    unsigned key_matches_;                           // paths whose step is the last key
    unsigned levels_[kMaxSteps + 1];        // by depth: paths that lead into the open array or object
    std::uint32_t indexes_[kMaxSteps + 1];  // by depth: the index of the next value of an array
    bool objects_[kMaxSteps + 1];           // by depth: whether it is an object
    std::size_t token_;                     // bytes of a token that yajl holds
    std::size_t held_size_;
    std::size_t used_;
    Number numbers_[kMaxPaths];
    char held_[kMaxHeld];  // a string that is not complete
    alignas(16) char memory_[kMemory];
};

}  // namespace rate_limit::body
