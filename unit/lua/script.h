// The scripts of lua/, as they are or with another chunk in place of lua/keys.lua.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>

namespace rate_limit {

// `order` is the file of lua/ that names the parts; `keys` is what stands for lua/keys.lua, if it is not
// null; `whole` is how many entries a log may have that is kept whole, if not as many as the script says.
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
        text.replace(begin, text.find("\n-- log_ring.lua\n") + 1 - begin, keys);
    }
    if (whole >= 0) {
        const std::string large = "local LARGE = ";
        const std::size_t begin = text.find(large) + large.size();
        text.replace(begin, text.find('\n', begin) - begin, std::to_string(whole));
        // Few entries are read and written at once, so that small logs take several steps as well.
        const std::string at_once = "RUN, MOST, FORMAT = 44, 32, 4096,";
        text.replace(text.find(at_once), at_once.size(), "RUN, MOST, FORMAT = 44, 4, 3,");
    }
    return text;
}

}  // namespace rate_limit
