// Parses paths.
#include "body/path.h"

#include <algorithm>

namespace rate_limit::body {
namespace {

constexpr char kForm[] = "names separated by dots, such as usage.total_tokens";
constexpr char kNames[] = "names of 1 to 64 bytes, without quotes, backslashes and control characters";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_plain(char c) { return static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\'; }

Step make_step(std::string_view name) {
    constexpr std::size_t kMostDigits = 9;
    Step step = {name, 0, false};
    step.is_index = name.size() <= kMostDigits && std::all_of(name.begin(), name.end(), is_digit) &&
                    (name.size() == 1 || name[0] != '0');
    for (std::size_t i = 0; step.is_index && i < name.size(); i++) {
        step.index = step.index * 10 + static_cast<std::uint32_t>(name[i] - '0');
    }
    return step;
}

}  // namespace

const char* parse_path(std::string_view text, Path* path) {
    path->size = 0;
    path->key = {};
    if (text.empty()) {
        return kForm;
    }
    for (bool last = false; !last;) {
        const std::size_t dot = text.find('.');
        const std::string_view name = text.substr(0, dot);
        last = dot == std::string_view::npos;
        text.remove_prefix(last ? text.size() : dot + 1);
        if (name.empty() || name.size() > kMaxStep || !std::all_of(name.begin(), name.end(), is_plain)) {
            return kNames;
        }
        if (path->size == kMaxSteps) {
            return "a path of at most 16 names";
        }
        const Step step = make_step(name);
        path->steps[path->size++] = step;
        if (!step.is_index) {
            path->key = name;
        }
    }
    return nullptr;
}

}  // namespace rate_limit::body
