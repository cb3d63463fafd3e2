// A command in RESP.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace rate_limit::redis {

inline std::string format_command(std::initializer_list<std::string_view> words) {
    std::string text = "*" + std::to_string(words.size()) + "\r\n";
    for (const std::string_view word : words) {
        text += "$" + std::to_string(word.size()) + "\r\n";
        text += word;
        text += "\r\n";
    }
    return text;
}

}  // namespace rate_limit::redis
