// The script of lua/, as it is or with another chunk in place of lua/keys.lua.
#pragma once

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace rate_limit {

inline std::string read_text(const std::string& path) {
    std::ifstream file(path);
    if (!file) {
        throw std::runtime_error("cannot read " + path + "; tests run in the project's folder");
    }
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

// `keys` is what stands for lua/keys.lua, if it is not null.
inline std::string script_text(const char* keys) {
    std::istringstream order(read_text("lua/ORDER"));
    std::string text;
    for (std::string name; std::getline(order, name);) {
        text += keys != nullptr && name == "keys.lua" ? keys : read_text("lua/" + name);
    }
    return text;
}

}  // namespace rate_limit
