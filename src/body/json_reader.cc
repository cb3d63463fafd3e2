// Splits a document into pieces that yajl parses in bounded memory, and follows paths in yajl's events.
#include "body/json_reader.h"

#include <yajl/yajl_parse.h>

#include <algorithm>
#include <cstring>

#include "body/scan.h"

namespace rate_limit::body {
namespace {

constexpr std::string_view kEmptyString = "\"\"";

// A value of an object that is longer is skipped, since this is faster than yajl.
constexpr std::ptrdiff_t kShortValue = 32;  // bytes

// The header of a block of yajl's memory.
union BlockSize {
    std::size_t size;
    std::max_align_t aligned;
};

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Whether a character can be part of a number or a literal.
bool is_in_token(char c) {
    return !is_space(c) && c != ',' && c != ':' && c != '"' && c != '[' && c != ']' && c != '{' && c != '}';
}

bool is_hexadecimal(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// Whether a character can follow a backslash, apart from u.
bool is_escaped(char c) {
    switch (c) {
        case '"':
        case '\\':
        case '/':
        case 'b':
        case 'f':
        case 'n':
        case 'r':
        case 't':
            return true;
        default:
            return false;
    }
}

// Whether a string that begins here is the value of a member.
bool follows_colon(const char* run, const char* quote) {
    if (quote != run && quote[-1] == ' ') {
        quote--;
    }
    return quote != run && quote[-1] == ':';
}

}  // namespace

struct Callbacks {
    static JsonReader& reader(void* context) { return *static_cast<JsonReader*>(context); }

    static int value(void* context) {
        reader(context).matches();
        return 1;
    }
    static int boolean(void* context, int) { return value(context); }
    static int string(void* context, const unsigned char*, std::size_t) { return value(context); }

    static int number(void* context, const char* text, std::size_t size) {
        JsonReader& self = reader(context);
        if (size > kMaxAnyNumber) {
            self.fail(Syntax::kTooLarge);
            return 0;
        }
        unsigned found = self.matches();
        for (std::size_t i = 0; found != 0; i++, found >>= 1) {
            if ((found & 1) != 0 && self.paths_->paths[i].size == self.depth_) {
                Number& number = self.numbers_[i];
                number.size = size <= kMaxNumber ? static_cast<std::uint8_t>(size) : 0;
                std::memcpy(number.text, text, number.size);
            }
        }
        return 1;
    }

    static int key(void* context, const unsigned char* text, std::size_t size) {
        JsonReader& self = reader(context);
        const std::string_view name(reinterpret_cast<const char*>(text), size);
        self.key_matches_ = 0;
        unsigned open = self.depth_ <= kMaxSteps ? self.levels_[self.depth_] : 0;
        for (std::size_t i = 0; open != 0; i++, open >>= 1) {
            const Path& path = self.paths_->paths[i];
            if ((open & 1) != 0 && path.steps[self.depth_ - 1].name == name) {
                self.key_matches_ |= 1U << i;
            }
        }
        return 1;
    }

    static int open_object(void* context) { return reader(context).open(true) ? 1 : 0; }
    static int open_array(void* context) { return reader(context).open(false) ? 1 : 0; }
    static int close(void* context) {
        reader(context).depth_--;
        return 1;
    }

    static void* allocate(void* context, std::size_t size) { return reader(context).allocate(size); }
    static void* reallocate(void* context, void* old, std::size_t size) {
        void* room = reader(context).allocate(size);
        if (room != nullptr && old != nullptr) {
            std::memcpy(room, old, std::min(size, (static_cast<BlockSize*>(old) - 1)->size));
        }
        return room;
    }
    static void release(void*, void*) {}
};

namespace {

constexpr yajl_callbacks kCallbacks = {
    Callbacks::value,  Callbacks::boolean,     nullptr,        nullptr,          Callbacks::number,
    Callbacks::string, Callbacks::open_object, Callbacks::key, Callbacks::close, Callbacks::open_array,
    Callbacks::close,
};

}  // namespace

void JsonReader::begin(const Paths* paths) {
    paths_ = paths;
    syntax_ = Syntax::kGood;
    place_ = Place::kParsed;
    escape_ = 0;
    depth_ = 0;
    key_matches_ = 0;
    token_ = 0;
    held_size_ = 0;
    used_ = 0;
    for (std::size_t i = 0; i < paths->size; i++) {
        numbers_[i].size = 0;
    }
    yajl_alloc_funcs memory = {Callbacks::allocate, Callbacks::reallocate, Callbacks::release, this};
    parser_ = yajl_alloc(&kCallbacks, &memory, this);
    yajl_config(parser_, yajl_dont_validate_strings, 1);
}

// yajl does not check for null. A unit test shows that the memory is enough for any document.
void* JsonReader::allocate(std::size_t size) {
    const std::size_t whole =
        sizeof(BlockSize) + (size + sizeof(BlockSize) - 1) / sizeof(BlockSize) * sizeof(BlockSize);
    if (whole > sizeof(memory_) - used_) {
        return nullptr;
    }
    auto* block = reinterpret_cast<BlockSize*>(memory_ + used_);
    used_ += whole;
    block->size = size;
    return block + 1;
}

// The paths that lead to the value that begins.
unsigned JsonReader::matches() {
    if (depth_ == 0 || depth_ > kMaxSteps) {
        return 0;
    }
    if (objects_[depth_]) {
        return key_matches_;
    }
    const std::uint32_t index = indexes_[depth_]++;
    unsigned matching = 0;
    unsigned open = levels_[depth_];
    for (std::size_t i = 0; open != 0; i++, open >>= 1) {
        const Step& step = paths_->paths[i].steps[depth_ - 1];
        if ((open & 1) != 0 && step.is_index && step.index == index) {
            matching |= 1U << i;
        }
    }
    return matching;
}

bool JsonReader::open(bool is_object) {
    unsigned inside = matches();
    if (depth_ == kMaxDepth) {
        fail(Syntax::kTooLarge);
        return false;
    }
    depth_++;
    if (depth_ > kMaxSteps) {
        return true;
    }
    if (depth_ == 1) {
        inside = (1U << paths_->size) - 1;
    }
    for (std::size_t i = 0; i < paths_->size; i++) {
        if (paths_->paths[i].size < depth_) {
            inside &= ~(1U << i);
        }
    }
    levels_[depth_] = inside;
    objects_[depth_] = is_object;
    indexes_[depth_] = 0;
    key_matches_ = 0;
    return true;
}

// Whether yajl would hold only short tokens: it holds the first token of each piece, and a token that is not
// complete.
bool JsonReader::has_short_tokens(std::string_view text) {
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    const char* const first = std::find_if_not(begin, end, is_space);
    const char* const bound = first + std::min<std::ptrdiff_t>(end - first, kMaxAnyNumber + 1);
    const auto first_size = static_cast<std::size_t>(std::find_if_not(first, bound, is_in_token) - first);
    if (first_size + (first == begin ? token_ : 0) > kMaxAnyNumber) {
        return false;
    }
    const char* last = end;
    while (last != begin && end - last <= static_cast<std::ptrdiff_t>(kMaxAnyNumber) &&
           is_in_token(last[-1])) {
        last--;
    }
    token_ = static_cast<std::size_t>(end - last) + (last == begin ? token_ : 0);
    return token_ <= kMaxAnyNumber;
}

void JsonReader::parse(std::string_view text) {
    if (text.empty() || syntax_ != Syntax::kGood) {
        return;
    }
    if (!has_short_tokens(text)) {
        fail(Syntax::kTooLarge);
        return;
    }
    const yajl_status status =
        yajl_parse(parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
    if (status == yajl_status_error) {
        fail(Syntax::kMalformed);
    }
}

// Reads a character of an escape sequence; false if it is invalid.
bool JsonReader::read_escaped(char c) {
    if (escape_ == 1) {
        escape_ = c == 'u' ? 5 : 0;
        return c == 'u' || is_escaped(c);
    }
    escape_ = escape_ == 2 ? 0 : escape_ - 1;
    return is_hexadecimal(c);
}

// The quote that ends the string whose text continues at `at`; `end` if it has not arrived or the string is
// invalid.
const char* JsonReader::find_quote(const char* at, const char* end) {
    while (at != end) {
        if (escape_ == 0) {
            at = skip_plain_text(at, end);
            if (at == end || *at == '"') {
                return at;
            }
            escape_ = 1;
            if (*at++ != '\\') {
                fail(Syntax::kMalformed);
                return end;
            }
        } else if (!read_escaped(*at++)) {
            fail(Syntax::kMalformed);
            return end;
        }
    }
    return end;
}

// Adds to the string that is held, unless it gets too long to be a name of a path.
void JsonReader::hold(const char* at, const char* end) {
    const auto size = static_cast<std::size_t>(end - at);
    if (size > sizeof(held_) - held_size_) {
        place_ = Place::kSkippedString;
        return;
    }
    std::memcpy(held_ + held_size_, at, size);
    held_size_ += size;
}

// Reads tokens up to the first string or value that yajl must not get as it is, or to the next bracket that
// opens an array or object. Returns the end of what was read.
const char* JsonReader::read_run(const char* at, const char* end) {
    const char* const run = at;
    const auto text_to = [run](const char* to) {
        return std::string_view(run, static_cast<std::size_t>(to - run));
    };
    while (true) {
        at = std::find_if(at, end, [](char c) { return c == '"' || c == '[' || c == '{'; });
        if (at == end) {
            parse(text_to(end));
            return end;
        }
        if (*at != '"') {
            parse(text_to(++at));
            if (syntax_ == Syntax::kGood && is_beside_paths()) {
                place_ = Place::kSkippedValue;
                skipped_depth_ = 0;
                skipped_ = {};
            }
            return at;
        }
        const char* const close = find_quote(at + 1, end);
        const bool is_value = follows_colon(run, at);
        if (close == end) {
            parse(text_to(at));
            held_size_ = 0;
            place_ = is_value ? Place::kSkippedString : Place::kHeldString;
            hold(at, is_value ? at : end);
            return end;
        }
        if (close - at >= (is_value ? kShortValue : static_cast<std::ptrdiff_t>(sizeof(held_)))) {
            parse(text_to(at));
            parse(kEmptyString);
            return close + 1;
        }
        at = close + 1;
    }
}

// Counts a bracket of a skipped value; false if it closes the value, or if the value is malformed or too
// deep.
bool JsonReader::skip_bracket(char c) {
    const bool is_object = c == '{' || c == '}';
    if (c == '{' || c == '[') {
        if (depth_ + skipped_depth_ == kMaxDepth) {
            fail(Syntax::kTooLarge);
            return false;
        }
        std::uint64_t& word = skipped_objects_[skipped_depth_ / 64];
        const std::uint64_t bit = std::uint64_t{1} << (skipped_depth_ % 64);
        word = is_object ? word | bit : word & ~bit;
        skipped_depth_++;
        return true;
    }
    if (skipped_depth_ == 0) {
        return false;
    }
    skipped_depth_--;
    const bool opened_object = (skipped_objects_[skipped_depth_ / 64] >> (skipped_depth_ % 64) & 1) != 0;
    if (opened_object != is_object) {
        fail(Syntax::kMalformed);
    }
    return opened_object == is_object;
}

// Skips `size` bytes, up to a block, of the value. `block` has as many bytes as a block. Returns the index of
// the bracket that closes the value, or `size`.
[[gnu::always_inline]] inline std::size_t JsonReader::skip_block(const char* block, std::size_t size,
                                                                 Skipped* state) {
    const BlockMarks marks = find_marks(block);
    state->is_plain = (marks.quotes | marks.backslashes | marks.brackets) == 0;
    bool carry = state->is_escaped;
    const std::uint64_t escaped = find_escaped(marks.backslashes, &carry);
    const std::uint64_t quotes = marks.quotes & ~escaped;
    std::uint64_t strings = state->in_string;
    if (quotes != 0) {
        strings ^= parities(quotes);
    }
    for (std::uint64_t bits = marks.brackets & ~strings; bits != 0; bits &= bits - 1) {
        const int index = __builtin_ctzll(bits);
        if (!skip_bracket(block[index])) {
            place_ = Place::kParsed;
            return static_cast<std::size_t>(index);
        }
    }
    state->is_escaped = size == kBlock ? carry : (escaped >> size & 1) != 0;
    state->in_string = std::uint64_t{0} - (strings >> 63);
    return size;
}

// Skips the content of an array or object beside all paths. Returns the bracket that closes it, or `end`.
const char* JsonReader::skip_value(const char* at, const char* end) {
    Skipped state = skipped_;
    std::size_t used = kBlock;
    while (used == kBlock && static_cast<std::size_t>(end - at) >= kBlock) {
        used = skip_block(at, kBlock, &state);
        at += used;
        // After a block without marks, the next ones often have none either, as in a list of numbers.
        while (state.is_plain && static_cast<std::size_t>(end - at) >= kBlock && !may_have_marks(at)) {
            at += kBlock;
        }
    }
    if (place_ == Place::kSkippedValue && at != end) {
        const auto size = static_cast<std::size_t>(end - at);
        char block[kBlock];
        std::memset(block, ' ', sizeof(block));
        std::memcpy(block, at, size);
        at += skip_block(block, size, &state);
    }
    skipped_ = state;
    return at;
}

// Continues a string. Returns the end of what was read.
const char* JsonReader::read_string(const char* at, const char* end) {
    const char* const close = find_quote(at, end);
    const char* const next = close != end ? close + 1 : end;
    if (place_ == Place::kHeldString) {
        hold(at, next);
    }
    if (close != end) {
        parse(place_ == Place::kHeldString ? std::string_view(held_, held_size_) : kEmptyString);
        place_ = Place::kParsed;
    }
    return next;
}

void JsonReader::feed(const char* data, std::size_t size) {
    const char* const end = data + size;
    while (data != end && syntax_ == Syntax::kGood) {
        data = place_ == Place::kParsed         ? read_run(data, end)
               : place_ == Place::kSkippedValue ? skip_value(data, end)
                                                : read_string(data, end);
    }
}

Syntax JsonReader::finish() {
    if (syntax_ == Syntax::kGood &&
        (place_ != Place::kParsed || yajl_complete_parse(parser_) != yajl_status_ok)) {
        fail(Syntax::kMalformed);
    }
    return syntax_;
}

}  // namespace rate_limit::body
