// Documents and streams for tests of src/body, and readers that get them in pieces.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "body/body_reader.h"

namespace rate_limit::body {

inline Paths paths_of(const std::vector<std::string_view>& texts) {
    Paths paths = {};
    for (const std::string_view text : texts) {
        if (parse_path(text, &paths.paths[paths.size]) == nullptr) {
            paths.size++;
        }
    }
    return paths;
}

// The numbers at the paths, joined by spaces; "-" for a path without a number.
struct Reading {
    std::string numbers;
    Syntax syntax;

    bool operator==(const Reading& other) const { return numbers == other.numbers && syntax == other.syntax; }
};

inline void showValue(const Reading& reading, std::ostream& out) {
    out << reading.numbers << " syntax " << static_cast<int>(reading.syntax);
}

// Reads a body in pieces of these sizes, which repeat. Each piece is a block of its own, so that sanitizers
// find accesses beyond it.
inline Reading read_pieces(const Paths& paths, Format format, std::string_view text,
                           const std::vector<std::size_t>& sizes) {
    auto reader = std::make_unique<BodyReader>();
    reader->begin(&paths, format);
    for (std::size_t i = 0, at = 0; at < text.size(); i++) {
        const std::size_t size =
            std::min(std::max<std::size_t>(sizes[i % sizes.size()], 1), text.size() - at);
        const std::vector<char> piece(text.begin() + static_cast<long>(at),
                                      text.begin() + static_cast<long>(at + size));
        reader->feed(piece.data(), piece.size());
        at += size;
    }
    Reading reading;
    reading.syntax = reader->finish();
    for (std::size_t i = 0; i < paths.size; i++) {
        const std::string_view number = reader->number(i);
        reading.numbers.append(i == 0 ? "" : " ").append(number.empty() ? "-" : number);
    }
    return reading;
}

inline Reading read_whole(const Paths& paths, Format format, std::string_view text) {
    return read_pieces(paths, format, text, {text.size()});
}

// A random text that is a document, or nearly one.
inline rc::Gen<std::string> arbitrary_document() {
    static const std::vector<std::string> tokens = {
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"a\"",
        "\"b\"",
        "\"a\":",
        "\"b\":",
        "1",
        "23",
        "-0.5e+7",
        "true",
        "null",
        " ",
        "\n",
        "\"\\u0061\"",
        "\"\\\"\\\\\"",
        "\"x y\"",
        "{\"a\":{\"b\":7}}",
        "[1,{\"a\":2}]",
        "\"\\x\"",
        "\"\x01\"",
        "\"" + std::string(600, 'k') + "\"",
        "\"" + std::string(40, 'v') + "\\n\"",
        "0",
        "12345678901234567890",
    };
    return rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(tokens)),
                        [](const std::vector<std::string>& parts) {
                            std::string text;
                            for (const std::string& part : parts) {
                                text += part;
                            }
                            return text;
                        });
}

// A random well-formed value, at most `depth` deep.
inline rc::Gen<std::string> arbitrary_value(int depth) {
    const auto scalar = rc::gen::element<std::string>(
        "1", "-2.5e3", "0", "true", "null", "\"text\"", "\"\\u0061\\\"\"", "\"]}\\\\\"", "\"{[\\\\\\\"\"",
        "[\"\",{}]", "\"" + std::string(700, 'x') + "\"", "900719925474099");
    if (depth == 0) {
        return scalar;
    }
    // Short lists, since the number of values grows with the power of the depth.
    const auto inner = rc::gen::resize(4, rc::gen::container<std::vector<std::string>>(
                                              rc::gen::lazy([depth] { return arbitrary_value(depth - 1); })));
    const auto keys = rc::gen::container<std::vector<std::string>>(
        rc::gen::element<std::string>("a", "b", "\\u0061", "0", "1", std::string(500, 'k')));
    const auto array = rc::gen::map(inner, [](const std::vector<std::string>& values) {
        std::string text = "[";
        for (std::size_t i = 0; i < values.size() && i < 4; i++) {
            text += (i == 0 ? "" : " , ") + values[i];
        }
        return text + "]";
    });
    const auto object = rc::gen::apply(
        [](const std::vector<std::string>& names, const std::vector<std::string>& values) {
            std::string text = "{";
            for (std::size_t i = 0; i < values.size() && i < names.size() && i < 4; i++) {
                text += (i == 0 ? "\"" : ",\"") + names[i] + "\": " + values[i];
            }
            return text + "}";
        },
        keys, inner);
    return rc::gen::oneOf(scalar, array, object);
}

}  // namespace rate_limit::body
