// Fuzzes what reads bodies: JSON documents and streams of events, in pieces of any size.
//
// The first byte of an input chooses the format, the second the sizes of pieces. Each rule that is broken
// aborts.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "body/body_reader.h"

namespace rate_limit::body {
namespace {

void must(bool rule, const char* words) {
    if (!rule) {
        std::fprintf(stderr, "broken: %s\n", words);
        std::abort();
    }
}

const Paths& all_paths() {
    static const Paths paths = [] {
        Paths made = {};
        for (const char* text : {"a", "usage.total_tokens", "a.b", "choices.0.n", "0", "a.1.b"}) {
            must(parse_path(text, &made.paths[made.size++]) == nullptr, "a path is valid");
        }
        return made;
    }();
    return paths;
}

// The numbers of a body that arrives in pieces of this size, and whether it is well-formed.
std::string read(Format format, std::string_view text, std::size_t size) {
    const auto reader = std::make_unique<BodyReader>();
    reader->begin(&all_paths(), format);
    for (std::size_t at = 0; at < text.size(); at += size) {
        const std::size_t part = std::min(size, text.size() - at);
        const std::unique_ptr<char[]> exact(new char[part]);
        text.copy(exact.get(), part, at);
        reader->feed(exact.get(), part);
    }
    std::string result = reader->finish() == Syntax::kGood ? "good" : "bad";
    for (std::size_t i = 0; i < all_paths().size; i++) {
        const std::string_view number = reader->number(i);
        must(number.size() <= kMaxNumber, "a number is short");
        must(number.find_first_not_of("0123456789+-.eE") == std::string_view::npos, "a number is a number");
        result.append(" ").append(number);
    }
    return result;
}

}  // namespace
}  // namespace rate_limit::body

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace rate_limit::body;
    if (size < 3) {
        return 0;
    }
    const Format format = data[0] % 2 == 0 ? Format::kJson : Format::kEvents;
    const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
    const std::string whole = read(format, text, text.size());
    must(read(format, text, 1) == whole, "single bytes are read like the whole");
    must(read(format, text, 1U + data[1]) == whole, "pieces are read like the whole");
    return 0;
}
