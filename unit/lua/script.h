// The scripts of lua/, as they are or with another chunk in place of lua/keys.lua.
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

// `order` is the file of lua/ that names the parts; `keys` is what stands for lua/keys.lua, if it is not
// null.
inline std::string script_text(const std::string& order, const char* keys) {
    std::istringstream names(read_text("lua/" + order));
    std::string text;
    for (std::string name; std::getline(names, name);) {
        text += keys != nullptr && name == "keys.lua" ? keys : read_text("lua/" + name);
    }
    return text;
}

}  // namespace rate_limit
