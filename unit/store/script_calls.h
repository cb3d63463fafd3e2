// Script calls, as a fake server parses and answers them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "packed.h"
#include "redis/calls.h"
#include "test.h"

namespace rate_limit {

inline redis::Settings settings_with(std::string_view script, const std::string& path,
                                     redis::Milliseconds timeout) {
    redis::Settings settings = redis::settings_for(path, timeout);
    settings.script = script;
    return settings;
}

// The words of EVALSHA.
struct ScriptCall {
    explicit ScriptCall(const redis::Words& command) {
        const auto first = command.begin() + 3;
        const auto count = static_cast<std::ptrdiff_t>(std::stoul(command[2]));
        assert_true(count <= command.end() - first);
        keys.assign(first, first + count);
        arguments.assign(first + count, command.end());
    }

    redis::Words keys;
    redis::Words arguments;
};

inline bool calls_script(const redis::Words& command, std::string_view sha1) {
    return command[0] == "EVALSHA" && command[1] == sha1;
}

inline std::uint64_t number_at(const std::string& text, std::size_t at, std::size_t bytes) {
    std::uint64_t number = 0;
    assert_true(at + bytes <= text.size());
    for (std::size_t i = 0; i < bytes; i++) {
        number |= std::uint64_t{static_cast<unsigned char>(text[at + i])} << (8 * i);
    }
    return number;
}

inline std::string packed(std::uint64_t number, std::size_t bytes) {
    return Packed().add(number, bytes).text();
}

// The records of the policies of a call.
inline std::vector<std::string> policy_records(const std::string& text) {
    std::vector<std::string> records;
    for (std::size_t at = 0; at < text.size(); at += records.back().size()) {
        records.push_back(text.substr(at, kPolicySize + kRateSize * number_at(text, at + 2, 1)));
    }
    return records;
}

}  // namespace rate_limit
