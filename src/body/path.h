// Paths to numbers in a JSON document, such as usage.total_tokens or data.0.cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rate_limit::body {

constexpr std::size_t kMaxSteps = 16;
constexpr std::size_t kMaxStep = 64;  // bytes
constexpr std::size_t kMaxPaths = 8;  // of one reader

// One step of a path: the name of a member, and also an index of an array if the name is a number.
struct Step {
    std::string_view name;
    std::uint32_t index;
    bool is_index;
};

struct Path {
    Step steps[kMaxSteps];
    std::size_t size;
    std::string_view key;  // the last step that is not an index; empty if all are
};

// The paths that one reader looks for.
struct Paths {
    Path paths[kMaxPaths];
    std::size_t size;
};

// Parses steps separated by dots. The path refers to `text`. Returns null, or what a path must be.
const char* parse_path(std::string_view text, Path* path);

}  // namespace rate_limit::body
