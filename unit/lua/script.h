// The text of a script of lua/, optionally with another text instead of lua/keys.lua.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>

namespace rate_limit {

// `order` is a name that `scripts/embed join` accepts. `keys`, if not null, replaces lua/keys.lua. `whole`,
// if not negative, replaces LARGE of lua/large_logs.lua: a log of more entries is a ring.
inline std::string script_text(const std::string& order, const char* keys, long whole = -1) {
    std::string text;
    FILE* joined = popen(("scripts/embed join " + order).c_str(), "r");
    char piece[4096];
    while (joined != nullptr && std::fgets(piece, sizeof(piece), joined) != nullptr) {
        text += piece;
    }
    if (joined == nullptr || pclose(joined) != 0) {
        throw std::runtime_error("cannot join lua/" + order + "; tests run in the project's folder");
    }
    if (keys != nullptr) {
        const std::size_t begin = text.find("\n-- keys.lua\n") + 1;
        text.replace(begin, text.find("\n-- algorithms.lua\n") + 1 - begin, keys);
    }
    if (whole >= 0) {
        const std::string large = "local LARGE = ";
        const std::size_t begin = text.find(large) + large.size();
        text.replace(begin, text.find('\n', begin) - begin, std::to_string(whole));
        // Reads and writes few entries at once, so that small logs need several steps too.
        const std::string at_once = "RUN, MOST, FORMAT = 44, 32, 4096,";
        text.replace(text.find(at_once), at_once.size(), "RUN, MOST, FORMAT = 44, 4, 3,");
    }
    return text;
}

}  // namespace rate_limit
