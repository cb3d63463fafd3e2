// A server that parses calls of the script and decides as a test says, and a batcher for it.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "client.h"
#include "protocol/script_text.h"
#include "script_calls.h"
#include "store/check_batcher.h"

namespace rate_limit {

// A limit of a group in a call.
struct SeenLimit {
    std::string key;
    std::string policy;  // its record
    unsigned index;      // of the policy
    std::uint64_t cost;
    Charge charge = {};  // that the group undoes
};

struct SeenGroup {
    GroupKind kind;
    std::vector<SeenLimit> limits;
};

// One call of the script.
struct SeenCall {
    std::vector<std::string> policies;
    std::vector<SeenGroup> groups;
    std::size_t keys;
    bool declared;  // the keys are
};

inline std::string admit(std::uint64_t remaining = 5, Micros reset = 90 * kSecond) {
    return packed(8, 1) + packed(remaining, 4) + packed(static_cast<std::uint64_t>(reset), 7);
}

inline std::string reject(Micros retry = 30 * kSecond, Micros reset = 60 * kSecond,
                          std::uint64_t remaining = 0) {
    return packed(16, 1) + packed(remaining, 4) + packed(static_cast<std::uint64_t>(reset), 7) +
           packed(static_cast<std::uint64_t>(retry), 7) + packed(1000, 8);
}

class ScriptServer {
  public:
    static constexpr Micros kTime = 1'700'000'000'123'456;

    explicit ScriptServer(redis::TestLoop* loop) : server(loop) {
        server.answer = [this](const redis::Words& command) {
            return calls_script(command, kScriptSha1) ? run(command) : "-ERR what?\r\n";
        };
    }

    std::size_t groups() const {
        std::size_t count = 0;
        for (const SeenCall& call : calls) {
            count += call.groups.size();
        }
        return count;
    }

    std::vector<SeenGroup> refunds() const {
        std::vector<SeenGroup> found;
        for (const SeenCall& call : calls) {
            for (const SeenGroup& group : call.groups) {
                if (group.kind >= kUndo) {
                    found.push_back(group);
                }
            }
        }
        return found;
    }

    redis::FakeServer server;
    std::vector<SeenCall> calls;
    std::function<std::string(const SeenLimit& limit)> decide = [](const SeenLimit&) { return admit(); };
    // For a call with undeclared keys: whether the server lacks the slot of one of them. Such calls are not
    // in `calls`.
    std::function<bool(const redis::Words& keys)> elsewhere;
    std::size_t refused = 0;  // number of such calls
    std::function<std::string(const std::string& reply)> send =
        redis::bulk;  // makes the reply in RESP; empty for no reply

  private:
    std::string run(const redis::Words& command) {
        const ScriptCall words(command);
        const bool declared = !words.keys.empty();
        assert_true(words.arguments.size() >= 2 && (!declared || words.arguments.size() == 2));
        const redis::Words keys =
            declared ? words.keys : redis::Words(words.arguments.begin() + 2, words.arguments.end());
        if (!declared && elsewhere && elsewhere(keys)) {
            refused++;
            return redis::bulk("");
        }
        SeenCall call = {policy_records(words.arguments[0]), {}, keys.size(), declared};
        const std::string& groups = words.arguments[1];
        std::string reply = packed(kTime, 8);
        std::size_t key = 0;
        for (std::size_t at = 0; at < groups.size();) {
            const auto head = static_cast<unsigned>(number_at(groups, at++, 1));
            SeenGroup group = {static_cast<GroupKind>(head / 64 * 64), {}};
            const std::size_t bytes = (head & kLargeCosts) != 0 ? 7 : 4;  // of a cost
            const std::size_t record = 1 + bytes + (group.kind >= kUndo ? 15 : 0);
            for (unsigned i = 0; i < head % 32; i++, at += record) {
                const auto index = static_cast<unsigned>(number_at(groups, at, 1));
                assert_true(index < call.policies.size() && key < keys.size());
                group.limits.push_back(
                    {keys[key++], call.policies[index], index, number_at(groups, at + 1, bytes)});
                if (group.kind >= kUndo) {
                    group.limits.back().charge = {number_at(groups, at + 1 + bytes, 7),
                                                  static_cast<Micros>(number_at(groups, at + 8 + bytes, 8))};
                }
                reply += group.kind == kDecide ? decide(group.limits.back()) : "";
            }
            call.groups.push_back(group);
        }
        assert_int_equal(key, keys.size());
        calls.push_back(call);
        return send(reply);
    }
};

inline redis::Settings script_settings(const std::string& path, redis::Milliseconds timeout = 2000) {
    return settings_with(kScript, path, timeout);
}

// A batcher that a test may destroy early.
class TestBatcher {
  public:
    TestBatcher(redis::TestLoop* loop, const std::string& path, std::uint32_t batch = 64,
                redis::Milliseconds timeout = 2000)
        : settings_(script_settings(path, timeout)),
          batcher_(new CheckBatcher(redis::Client::make(settings_, {}, loop), {"rate_limit:", batch}, loop)) {
        assert_non_null(batcher_);
    }
    ~TestBatcher() { end(); }
    TestBatcher(const TestBatcher&) = delete;
    TestBatcher& operator=(const TestBatcher&) = delete;

    void end() {
        delete batcher_;
        batcher_ = nullptr;
    }

    // A second connection, as nginx has for requests.
    void use_spare() { settings_.spare = true; }

    CheckBatcher* operator->() const { return batcher_; }
    CheckBatcher* get() const { return batcher_; }
    std::uint64_t errors(redis::Error error) const {
        return batcher_->router().client_of(0)->counts().errors[static_cast<unsigned>(error)];
    }

  private:
    redis::Settings settings_;
    CheckBatcher* batcher_;
};

}  // namespace rate_limit
