// Builds a script call from groups of limits.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "algorithms/check.h"
#include "protocol/wire.h"

namespace rate_limit {

struct CallLimit {
    std::size_t policy;  // index in the call's policies
    std::string key;
    std::uint64_t cost;
    Charge charge = {};  // that the group undoes
};

struct CallGroup {
    GroupKind kind;
    std::vector<CallLimit> limits;
};

struct Call {
    std::vector<std::pair<Policy, StateLayout>> policies;
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

    // The command of a check. If not `declared`, the keys are the last arguments.
    std::vector<std::string> command(const std::string& sha, bool declared = true) const {
        std::string text;
        for (const CallGroup& group : groups) {
            const bool large = std::any_of(group.limits.begin(), group.limits.end(),
                                           [](const CallLimit& limit) { return is_large(limit.cost); });
            text += static_cast<char>(group.limits.size() | group.kind | (large ? kLargeCosts : 0));
            text += records_of(group, large);
        }
        const std::vector<std::string> all = keys();
        std::vector<std::string> words = begin(sha, declared ? all : std::vector<std::string>());
        words.push_back(text);
        if (!declared) {
            words.insert(words.end(), all.begin(), all.end());
        }
        return words;
    }

    // The sync command that charges every limit of the first group.
    std::vector<std::string> sync_command(const std::string& sha, const std::string& guard,
                                          const std::string& sequence, const std::string& age = "0") const {
        std::vector<std::string> all = keys();
        all.push_back(guard);
        std::vector<std::string> words = begin(sha, all);
        words.push_back(records_of(groups[0], true));
        words.push_back(sequence);
        words.push_back(age);
        return words;
    }

  private:
    // The first arguments of both commands: script, keys, policies.
    std::vector<std::string> begin(const std::string& sha, const std::vector<std::string>& all) const {
        std::vector<std::string> words = {"EVALSHA", sha, std::to_string(all.size())};
        words.insert(words.end(), all.begin(), all.end());
        std::string records;
        for (const auto& [policy, layout] : policies) {
            char record[kLongestPolicy];
            records.append(record, encode_policy(policy, layout, record));
        }
        words.push_back(records);
        return words;
    }

    static std::string records_of(const CallGroup& group, bool large) {
        redis::Buffer text;
        for (const CallLimit& limit : group.limits) {
            put_limit(text.extend(large ? kLargeLimitSize : kLimitSize), limit.policy, limit.cost, large);
            if (group.kind >= kUndo) {
                put_charge(text.extend(kChargeSize), limit.charge);
            }
        }
        return std::string(text.view());
    }
};

}  // namespace rate_limit
