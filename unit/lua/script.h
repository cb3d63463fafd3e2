// The text of a script of lua/, optionally with other texts instead of the files that read and write keys.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>

namespace rate_limit {

// What replaces files of lua/: clock.lua and keys.lua, and large_values.lua.
struct KeyFiles {
    const char* keys;
    const char* large_values;
};

// Replaces the text from the file `first` to the file before `next`.
inline void replace_files(const std::string& first, const std::string& next, const char* by,
                          std::string* text) {
    const std::size_t begin = text->find("-- " + first + "\n");
    const std::size_t end = text->find("\n-- " + next + "\n") + 1;
    text->replace(begin, end - begin, by);
}

// `order` is a name that `scripts/embed join` accepts. `files` may be null. `whole`, if not negative,
// replaces LARGE of lua/large_logs.lua: a log of more entries is a ring.
inline std::string script_text(const std::string& order, const KeyFiles* files, long whole = -1) {
    std::string text;
    FILE* joined = popen(("scripts/embed join " + order).c_str(), "r");
    char piece[4096];
    while (joined != nullptr && std::fgets(piece, sizeof(piece), joined) != nullptr) {
        text += piece;
    }
    if (joined == nullptr || pclose(joined) != 0) {
        throw std::runtime_error("cannot join lua/" + order + "; tests run in the project's folder");
    }
    if (files != nullptr) {
        replace_files("clock.lua", order == "ORDER" ? "lone.lua" : "arithmetic.lua", files->keys, &text);
        replace_files("large_values.lua", "algorithms.lua", files->large_values, &text);
    }
    if (whole >= 0) {
        const std::string large = "local LARGE = ";
        const std::size_t begin = text.find(large) + large.size();
        text.replace(begin, text.find('\n', begin) - begin, std::to_string(whole));
        // Reads and writes few entries at once, so that small logs need several steps too.
        const std::string at_once = "RUN, MOST, FORMAT = 32, 4096,";
        text.replace(text.find(at_once), at_once.size(), "RUN, MOST, FORMAT = 4, 3,");
    }
    return text;
}

}  // namespace rate_limit
