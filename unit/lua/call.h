// One script call, put together from groups of limits, and what it answered.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "store/wire.h"

namespace rate_limit {

struct CallLimit {
    std::size_t policy;  // index in the call's policies
    std::string key;
    std::uint32_t cost;
};

struct CallGroup {
    bool refund;
    std::vector<CallLimit> limits;
};

struct Call {
    std::vector<std::pair<Policy, Shape>> policies;
    std::vector<CallGroup> groups;

    std::vector<std::string> keys() const {
        std::vector<std::string> keys;
        for (const CallGroup& group : groups) {
            for (const CallLimit& limit : group.limits) {
                keys.push_back(limit.key);
            }
        }
        return keys;
    }

    // The command, with the script's SHA1.
    std::vector<std::string> command(const std::string& sha) const {
        const std::vector<std::string> all = keys();
        std::vector<std::string> words = {"EVALSHA", sha, std::to_string(all.size())};
        words.insert(words.end(), all.begin(), all.end());
        std::string records;
        for (const auto& [policy, shape] : policies) {
            char record[kLongestPolicy];
            records.append(record, encode_policy(policy, shape, record));
        }
        words.push_back(records);
        std::string text;
        for (const CallGroup& group : groups) {
            text += static_cast<char>(group.limits.size() | (group.refund ? kRefund : 0));
            for (const CallLimit& limit : group.limits) {
                text += static_cast<char>(limit.policy);
                for (unsigned shift = 0; shift < 32; shift += 8) {
                    text += static_cast<char>(limit.cost >> shift);
                }
            }
        }
        words.push_back(text);
        return words;
    }
};

}  // namespace rate_limit
