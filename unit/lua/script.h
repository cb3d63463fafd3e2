// The scripts of lua/, as they are or with another chunk in place of lua/keys.lua.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>

namespace rate_limit {

// `order` is the file of lua/ that names the parts; `keys` is what stands for lua/keys.lua, if it is not
// null.
inline std::string script_text(const std::string& order, const char* keys) {
    std::string text;
    FILE* joined = popen(("scripts/join-lua " + order).c_str(), "r");
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
    return text;
}

}  // namespace rate_limit
